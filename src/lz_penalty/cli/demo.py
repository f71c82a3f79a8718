"""`lz-penalty demo`: the problem and the cure, on a language model small enough to be built on the spot."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lz_penalty.config import LZPenaltyConfig
from lz_penalty.loops import trailing_loop
from lz_penalty.ops import apply_lz_penalty_

# Charles Dickens, A Tale of Two Cities (1859), the opening.
TEXT = """it was the best of times , it was the worst of times , it was the age of wisdom , it was the age of
foolishness , it was the epoch of belief , it was the epoch of incredulity , it was the season of light , it was the
season of darkness , it was the spring of hope , it was the winter of despair , we had everything before us , we had
nothing before us , we were all going direct to heaven , we were all going direct the other way - in short , the period
was so far like the present period , that some of its noisiest authorities insisted on its being received , for good
or for evil , in the superlative degree of comparison only . there were a king with a large jaw and a queen with a
plain face , on the throne of england ; there were a king with a large jaw and a queen with a fair face , on the
throne of france . in both countries it was clearer than crystal to the lords of the state preserves of loaves and
fishes , that things in general were settled for ever ."""


class TrigramModel:
    """Next-word logits from counts of one, two and three words."""

    def __init__(self, text: str) -> None:
        words = text.split()
        self.vocabulary = sorted(set(words))
        ids = [self.vocabulary.index(word) for word in words]
        self.counts = [Counter(tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)) for n in (1, 2, 3)]

    def logits(self, context: list[int]) -> np.ndarray:
        """`[1, vocab]`: the log of a mix of the three counts."""
        mixed = np.zeros(len(self.vocabulary), dtype=np.float32)
        for weight, n in ((0.02, 1), (0.18, 2), (0.8, 3)):
            before = tuple(context[len(context) - n + 1 :])
            total = sum(count for gram, count in self.counts[n - 1].items() if gram[:-1] == before)
            for gram, count in self.counts[n - 1].items():
                if gram[:-1] == before:
                    mixed[gram[-1]] += weight * count / total
        return np.log(mixed + 1e-9)[None]


def demo(
    words: int = typer.Option(60, min=1, max=2000, help="How many words to write."),
    strength: float = typer.Option(0.5, help="How many logits one bit of codelength is worth."),
) -> None:
    """A greedy language model with and without the penalty: it loops, and it does not.

    The model counts word triples in the opening of A Tale of Two Cities: small, but greedy decoding falls into a loop
    as it does in large models.
    """
    model = TrigramModel(TEXT)
    settings = {
        "no penalty": None,
        "paper": LZPenaltyConfig.paper(strength=strength, buffer_size=8),
        "guarded": LZPenaltyConfig.guarded(strength=strength),
        "failsafe": LZPenaltyConfig.failsafe(strength=strength),
    }
    table = Table("penalty", "greedy text", "loop at the end", show_lines=True)
    for name, config in settings.items():
        context = [model.vocabulary.index(word) for word in ["it", "was", "the"]]
        for _ in range(words):
            logits = model.logits(context)
            apply_lz_penalty_(logits, np.array([context]), config=config)
            context.append(int(logits.argmax()))
        loop = trailing_loop(context)
        text = Text(" ".join(model.vocabulary[token] for token in context))
        if loop:
            spelled = [len(model.vocabulary[token]) + 1 for token in context]
            text.stylize("red", sum(spelled[: len(context) - loop.length]))
        table.add_row(name, text, f"{loop.period} words, {math.floor(loop.copies)} times" if loop else "none")
    Console().print(table)
