"""Write the model card from the measured figures and the training log.

python -m research.training.card --evaluation OUT/evaluation.json --log OUT/train_log.jsonl --model OUT/model
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

CARD = """---
language: en
library_name: transformers
pipeline_tag: text-generation
license: apache-2.0
---
# The bundled model of lz-penalty

A Llama-architecture language model of {parameters:,} parameters ({size:.1f} MB in bfloat16) that shows, offline and in
seconds, what a repetition penalty does: continuing prose greedily, it loops; solving small problems step by step,
its accuracy can be measured. It is a measuring instrument and knows nothing of the world.

```python
from transformers import AutoModelForCausalLM, AutoTokenizer
from lz_penalty import bundled_model

model = AutoModelForCausalLM.from_pretrained(bundled_model.path())
tokenizer = AutoTokenizer.from_pretrained(bundled_model.path())
```

## Figures

Measured without any penalty by `research/training/evaluate.py` ({device}, float32), on held-out data only.

| measure | value |
|---|---|
| greedy accuracy on {problems:,} held-out problems | {accuracy:.1%} |
| greedy loop rate, {prompts} prompts, {new_tokens:,} tokens (5 adjacent copies and 60 tokens) | {loop_rate:.1%} |
| degenerate rate, the same (20 adjacent copies) | {degenerate_rate:.1%} |
| different 4-grams in these continuations | {distinct_4:.3f} |
| held-out prose, bits per token | {bits_per_token:.3f} |
| held-out prose, bits per byte | {bits_per_byte:.3f} |

Accuracy by family of problems: {families}.

A greedy continuation (the prompt in brackets):

> {sample}

## Formats

- Prose: plain text, paragraphs separated by an empty line, straight quotes. No token is put before the prompt.
- Problems: `Question: ...` and a line break; the model answers with numbered steps between `<think>` and `</think>`,
  one line `Answer: N`, and `<|endoftext|>`. The chat template does the same.
- Byte-level BPE of 4,096 entries; each digit is a token. Trained on up to 2,048 positions.

## Data

| source | share of tokens | provenance, licence |
|---|---|---|
| prose of {books} | {prose_share:.0%} | {gutenberg} |
| {written:,} tokens of generated problems | {problem_share:.0%} | `lz_penalty.bundled_model.problems` |
| GSM8K, training split less 500 problems | {gsm8k_share:.0%} | openai/grade-school-math at 3101c7d, MIT |

Held out: 14 whole books, 500 GSM8K training problems, and all problems whose question's checksum falls in the held-out
split. GSM8K's test split was not used.

## Training

{steps:,} steps of {step_tokens:,} tokens, {tokens:,} tokens in all, {seconds:.0f} seconds on one {gpu} (start-up
included); Muon and Adam, learning rate {lr}, zero at the end. The full log is `research/training/train_log.jsonl`;
`research/training/README.md` says how to repeat it. Held-out losses in nats per token:

| done | prose | solutions of problems | solutions of GSM8K |
|---|---|---|---|
{checks}
"""


def main() -> None:
    """Write README.md into the model folder."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--evaluation", type=Path, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    args = parser.parse_args()
    measured = json.loads(args.evaluation.read_text(encoding="utf-8"))
    events: dict[str, list[dict[str, Any]]] = {}
    for line in args.log.read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        events.setdefault(event["event"], []).append(event)
    (args.model / "README.md").write_text(card(measured, events, args.model), encoding="utf-8")


def card(measured: dict[str, Any], events: dict[str, list[dict[str, Any]]], model: Path) -> str:
    """Return the text of the card."""
    start, data, end = events["start"][0], events["data"][0], events["end"][0]
    given = start["arguments"]
    length = int(given["problem_length"])
    tokens = {
        "prose": int(given["prose_rows"]) * int(given["prose_length"]),
        "problem": int(given["problem_rows"]) * length,
        "gsm8k": int(given["gsm8k_rows"]) * length,
    }
    step_tokens = sum(tokens.values())
    losses = ("prose_heldout", "problems_heldout", "gsm8k_heldout")
    rows = [(f"{e['done']:.0%}", *(f"{e[n]:.3f}" for n in losses)) for e in events.get("check", [])]
    rows.append(("end", *(f"{end[n]:.3f}" for n in losses)))
    reasoning, open_ended, prose = measured["reasoning"], measured["open_ended"], measured["prose"]
    return CARD.format(
        parameters=measured["parameters"],
        size=(model / "model.safetensors").stat().st_size / 1e6,
        device="on a GPU" if measured["device"] == "cuda" else "on a CPU",
        families=", ".join(f"{name} {value:.0%}" for name, value in reasoning["by_family"].items()),
        sample=open_ended["samples"][0][:700].replace("\n\n", "\n>\n> "),
        books=f"{data['books']} books, {data['tokens']['prose']:,} tokens",
        gutenberg="Project Gutenberg (public domain in the USA), repository rcdm-uga/Gutenberg_Text at a0b16d3",
        written=data["tokens"]["problems"],
        **{f"{name}_share": n / step_tokens for name, n in tokens.items()},
        steps=end["step"],
        step_tokens=step_tokens,
        tokens=end["tokens"],
        seconds=end["seconds"],
        gpu=start["device"],
        lr=given["lr"],
        checks="\n".join(f"| {' | '.join(row)} |" for row in rows),
        **{name: reasoning[name] for name in ("problems", "accuracy")},
        **{name: open_ended[name] for name in ("prompts", "new_tokens", "loop_rate", "degenerate_rate", "distinct_4")},
        **{name: prose[name] for name in ("bits_per_token", "bits_per_byte")},
    )


if __name__ == "__main__":
    main()
