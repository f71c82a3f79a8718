"""Measure a model folder: reasoning accuracy, greedy loops, and how well it predicts held-out prose.

    PYTHONPATH=src python -m research.training.evaluate --model OUT/model --json OUT/evaluation.json

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

from lz_penalty import bundled_model
from lz_penalty.bundled_model import problems
from lz_penalty.detection import distinct, is_degenerate, is_loop
from lz_penalty.evaluation.generation import continue_greedily
from lz_penalty.evaluation.loading import Loaded, load
from lz_penalty.evaluation.penalties import penalty


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
    loaded = load(str(args.model), dtype="float32")
    device = loaded.model.device.type
    results: dict[str, Any] = {
        "parameters": loaded.model.num_parameters(),
        "device": device,
        "torch": torch.__version__,
    }
    sections = {
        "reasoning": lambda: reasoning(loaded, args.problems, args.samples, args.batch),
        "open_ended": lambda: open_ended(loaded, args.prompts, args.new_tokens, args.samples, args.batch),
        "prose": lambda: prose(loaded),
    }
    for name, measure in sections.items():
        results[name] = measure()
        results[name]["seconds_so_far"] = round(time.monotonic() - begin, 1)
        if args.json:
            args.json.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(json.dumps({k: {n: x for n, x in v.items() if n != "samples"} for k, v in results.items() if k in sections}))


def continuations(
    loaded: Loaded, prompts: list[str], new_tokens: int, batch: int, may_end: bool
) -> tuple[list[list[int]], list[str]]:
    """Return the tokens that greedy decoding adds to each prompt, and their text."""
    ids = [loaded.tokenizer(prompt).input_ids for prompt in prompts]
    tokens = continue_greedily(loaded, ids, penalty("none"), new_tokens, may_end=may_end, batch=batch).tokens
    return tokens, [loaded.tokenizer.decode(row) for row in tokens]


def reasoning(loaded: Loaded, n: int, samples: int, batch: int) -> dict[str, Any]:
    """Return the share of held-out problems answered right, in all and by family."""
    chosen = problems.generate(0, n, "heldout")
    _, texts = continuations(loaded, [problems.prompt(p) for p in chosen], 256, batch, may_end=True)
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


def open_ended(loaded: Loaded, n: int, new_tokens: int, samples: int, batch: int) -> dict[str, Any]:
    """Return how often greedy continuations of prose fall into loops."""
    prompts = bundled_model.prompts()[:n]
    outputs, texts = continuations(loaded, prompts, new_tokens, batch, may_end=False)
    shown = [f"[{prompt}]{text}" for prompt, text in zip(prompts[:samples], texts, strict=False)]
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
def prose(loaded: Loaded) -> dict[str, Any]:
    """Return the bits per token and per byte of held-out passages, each read from its own start."""
    model, tokenizer = loaded
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
