"""Measure a model folder: reasoning accuracy, greedy loops, and how well it predicts held-out prose.

    PYTHONPATH=src python training/evaluate.py --model OUT/model --json OUT/evaluation.json

Loads the folder with plain transformers, in float32. No penalty is applied anywhere.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lz_penalty import bundled_model
from lz_penalty.bundled_model import problems
from lz_penalty.detection import is_degenerate, is_loop
from lz_penalty.evaluation.compare import distinct


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--problems", type=int, default=1500)
    parser.add_argument("--prompts", type=int, default=256)
    parser.add_argument("--new-tokens", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=750)
    parser.add_argument("--samples", type=int, default=4)
    args = parser.parse_args()
    begin = time.monotonic()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).to(device).eval()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    generator = Generator(model, tokenizer, args.batch)
    results: dict[str, Any] = {"parameters": model.num_parameters(), "device": device, "torch": torch.__version__}
    sections = {
        "reasoning": lambda: reasoning(generator, args.problems, args.samples),
        "open_ended": lambda: open_ended(generator, args.prompts, args.new_tokens, args.samples),
        "prose": lambda: prose(model, tokenizer),
    }
    for name, measure in sections.items():
        results[name] = measure()
        results[name]["seconds_so_far"] = round(time.monotonic() - begin, 1)
        if args.json:
            args.json.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(json.dumps({k: {n: x for n, x in v.items() if n != "samples"} for k, v in results.items() if k in sections}))


class Generator:
    """Greedy decoding of many prompts at a time."""

    def __init__(self, model: Any, tokenizer: Any, batch: int) -> None:
        self.model, self.tokenizer, self.batch = model, tokenizer, batch

    @torch.inference_mode()
    def __call__(self, prompts: list[str], new_tokens: int, may_end: bool) -> list[list[int]]:
        """Return the new tokens of each prompt, without the end token; it is suppressed unless `may_end`."""
        rows = []
        for start in range(0, len(prompts), self.batch):
            batch = self.tokenizer(prompts[start : start + self.batch], return_tensors="pt", padding=True)
            out = self.model.generate(
                input_ids=batch.input_ids.to(self.model.device),
                attention_mask=batch.attention_mask.to(self.model.device),
                max_new_tokens=new_tokens,
                min_new_tokens=0 if may_end else new_tokens,
                do_sample=False,
            )
            for row in out[:, batch.input_ids.shape[1] :].tolist():
                end = self.tokenizer.eos_token_id
                rows.append(row[: row.index(end)] if end in row else row)
        return rows


def reasoning(generator: Generator, n: int, samples: int) -> dict[str, Any]:
    """Return the share of held-out problems answered right, in all and by family."""
    chosen = problems.generate(0, n, "heldout")
    outputs = generator([problems.prompt(p) for p in chosen], new_tokens=256, may_end=True)
    texts = [generator.tokenizer.decode(row) for row in outputs]
    right = defaultdict(list)
    for problem, text in zip(chosen, texts, strict=True):
        right[problem.family].append(problems.extract_answer(text) == problem.answer)
    shown = [problems.prompt(p) + text for p, text in zip(chosen[:samples], texts, strict=False)]
    print("\n\n".join(shown), flush=True)
    return {
        "problems": n,
        "accuracy": round(float(np.mean([ok for family in right.values() for ok in family])), 4),
        "by_family": {name: round(float(np.mean(right[name])), 3) for name in sorted(right)},
        "samples": shown,
    }


def open_ended(generator: Generator, n: int, new_tokens: int, samples: int) -> dict[str, Any]:
    """Return how often greedy continuations of prose fall into loops."""
    prompts = bundled_model.prompts()[:n]
    outputs = generator(prompts, new_tokens, may_end=False)
    texts = [generator.tokenizer.decode(row) for row in outputs[:samples]]
    shown = [f"[{prompt}]{text}" for prompt, text in zip(prompts, texts, strict=False)]
    print("\n\n".join(["", *(text[:1500] for text in shown)]), flush=True)
    return {
        "prompts": len(prompts),
        "new_tokens": new_tokens,
        "loop_rate": round(float(np.mean([is_loop(row) for row in outputs])), 4),
        "degenerate_rate": round(float(np.mean([is_degenerate(row) for row in outputs])), 4),
        "distinct_4": round(float(np.mean([distinct(row, 4) for row in outputs])), 4),
        "samples": shown,
    }


@torch.inference_mode()
def prose(model: Any, tokenizer: Any) -> dict[str, Any]:
    """Return the bits per token and per byte of held-out passages, each read from its own start."""
    nats, tokens, size = 0.0, 0, 0
    for passage in bundled_model.passages():
        ids = tokenizer(passage, return_tensors="pt").input_ids.to(model.device)
        logits = model(ids).logits[0, :-1].float()
        nats += torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum").item()
        tokens += ids.shape[1] - 1
        size += len(passage.encode()) - len(tokenizer.decode(ids[0, :1]).encode())
    bits = nats / math.log(2)
    return {"tokens": tokens, "bits_per_token": round(bits / tokens, 4), "bits_per_byte": round(bits / size, 4)}


if __name__ == "__main__":
    main()
