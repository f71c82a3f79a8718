"""Write greedy outputs of the bundled model under several penalties: `python -m research.labelled.model_outputs`.

The outputs go to model_outputs.jsonl.xz, one per line. A person reads them and labels them in labels.json. The file is
committed, because another machine may round differently and decode other texts.
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path

from lz_penalty import bundled_model
from lz_penalty.bundled_model import problems
from lz_penalty.evaluation.generation import continue_greedily
from lz_penalty.evaluation.loading import load
from lz_penalty.evaluation.penalties import penalty

NEW_TOKENS = 768
PROSE = (  # penalty, first prompt, number of prompts
    ("none", 0, 28),
    ("frequency:0.05", 28, 12),
    ("frequency:0.1", 40, 12),
    ("repetition:1.2", 52, 12),
    ("paper", 64, 10),
    ("failsafe", 74, 8),
    ("guarded", 82, 14),
    ("frequency:0.3", 96, 6),
)
PROBLEMS, SEED = 12, 4


def main() -> None:
    """Run the model and write the file."""
    loaded = load("bundled", device="cpu")
    tokenizer = loaded.tokenizer
    rows = []
    for name, first, count in PROSE:
        texts = bundled_model.prompts()[first : first + count]
        prompts = [tokenizer(text).input_ids for text in texts]
        done = continue_greedily(loaded, prompts, penalty(name), NEW_TOKENS, may_end=False)
        for number, tokens in enumerate(done.tokens, first):
            rows.append((f"model-{name}-{number}", name, f"continuing bundled prompt {number}", tokens))
    asked = problems.generate(seed=SEED, n=PROBLEMS, split="heldout")
    questions = [tokenizer(problems.prompt(problem)).input_ids for problem in asked]
    done = continue_greedily(loaded, questions, penalty("none"), NEW_TOKENS, may_end=True)
    for number, tokens in enumerate(done.tokens):
        rows.append((f"model-problem-{number}", "none", f"solving held-out problem {number} of seed {SEED}", tokens))
    with lzma.open(Path(__file__).parent / "model_outputs.jsonl.xz", "wt", encoding="utf-8") as file:
        for name, penalised, asked, tokens in rows:
            row = {"id": name, "penalty": penalised, "asked": asked, "text": tokenizer.decode(tokens)}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
