"""What the penalty is compared with: a dense add, the paper's penalty done densely, and the penalties people use.

Every baseline is a function of (history `[rows, length]`, logits `[rows, vocab]`), both torch tensors, as Hugging Face
processors are; it returns the new logits. `problems` checks the ones that are written here.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lz_penalty import LZPenaltyConfig, reference

Baseline = Callable[[Tensor, Tensor], Tensor]
TRANSFORMERS = ("repetition 1.2", "no 4-gram twice")


def bias_like(logits: Tensor) -> Tensor:
    """What the dense add adds, a value for every row and token: too small to move a logit, so nothing drifts."""
    return torch.full_like(logits, 1e-20)


# ---------------------------------------------------------------- the paper's penalty, densely


class DensePaper:
    """The paper's closed form the obvious way: unfold the window, then compare it with every vocabulary entry.

    Two intermediates of shape `[rows, vocab, window]` decide what it costs: booleans (one byte) and codelengths (four).
    """

    def __init__(self, config: LZPenaltyConfig):
        self.strength, self.window, self.buffer = config.strength, config.window_size, config.buffer_size

    def needs_gb(self, rows: int, vocab: int) -> float:
        """Gigabytes of the intermediates."""
        return 5e-9 * rows * vocab * self.window

    def __call__(self, history: Tensor, logits: Tensor) -> Tensor:
        """Lower `logits` in place; the constant `log2 V`, which softmax ignores, is left out."""
        buffer = history[:, -self.buffer :]
        window = history[:, : -self.buffer][:, -self.window :]
        if not window.shape[1]:
            return logits
        vocab = logits.shape[1]
        bits = self._values(window, buffer)  # [rows, window]
        tokens = torch.arange(vocab, device=logits.device)
        is_token = window[:, None, :] == tokens[None, :, None]  # [rows, vocab, window]
        codelength = torch.where(is_token, bits[:, None, :], math.log2(vocab)).amin(dim=2)
        return logits.add_(codelength - math.log2(vocab), alpha=self.strength)

    def _values(self, window: Tensor, buffer: Tensor) -> Tensor:
        """The codelength of each window position's token: an extension of a longest match, or a token by itself."""
        size, width = buffer.shape[1], window.shape[1]
        before = torch.nn.functional.pad(window, (size, 0), value=-1)  # a match does not leave the window
        equal = before.unfold(1, size, 1) == buffer[:, None, :]  # [rows, 1 + window, buffer], the match before each
        match = equal.flip(2).long().cumprod(dim=2).sum(dim=2)
        longest = match.amax(dim=1, keepdim=True)
        length = longest.clamp(min=1).float()
        e = torch.arange(width, 0, -1, device=window.device)  # distance of each position
        extends = (match[:, :width] == longest) & (longest >= 1) & (e >= 2)
        extension = torch.log2(1 + (e - 1) / (length * (e + length))) - 1
        return torch.where(extends, extension, torch.log2(e.float()))


# ---------------------------------------------------------------- DRY


def dry_penalties(
    history: np.ndarray, multiplier: float = 0.8, base: float = 1.75, allowed: int = 2
) -> tuple[np.ndarray, np.ndarray]:
    """The tokens that DRY lowers after this history `[length]`, and by how much; llama.cpp's semantics, no breakers.

        for token in vocabulary:
            n = longest end of the history that occurred before, followed by token
            if n >= allowed: logits[token] -= multiplier * base ** min(n - allowed, exponent that still fits a float)

    Matches are grown for all earlier places together, and no further than the exponent's cap.
    """
    cap = int(math.log(np.finfo(np.float32).max) / math.log(base))
    newest_first = history[::-1]
    places = np.flatnonzero(newest_first[1:] == newest_first[0]) + 1
    length = np.ones(len(places), dtype=np.int64)
    alive = np.arange(len(places))
    for k in range(1, min(allowed + cap, len(history))):
        alive = alive[: np.searchsorted(places[alive], len(history) - k)]
        alive = alive[newest_first[places[alive] + k] == newest_first[k]]
        if not len(alive):
            break
        length[alive] = k + 1
    long_enough = length >= allowed
    tokens, which = np.unique(newest_first[places[long_enough] - 1], return_inverse=True)
    longest = np.zeros(len(tokens), dtype=np.int64)
    np.maximum.at(longest, which, length[long_enough])
    return tokens, multiplier * base ** np.minimum(longest - allowed, cap)


def dry(history: Tensor, logits: Tensor) -> Tensor:
    """DRY as logits processors run it: row by row on the host, then a few logits written where they are."""
    for row, ids in enumerate(history.cpu().numpy()):
        tokens, penalty = dry_penalties(ids)
        if len(tokens):
            where = torch.from_numpy(tokens).to(logits.device)
            logits[row, where] -= torch.from_numpy(penalty).to(logits)
    return logits


# ---------------------------------------------------------------- transformers


def transformers_processors() -> dict[str, Baseline]:
    """Hugging Face's own penalties, or nothing where transformers is not installed."""
    try:
        from transformers import NoRepeatNGramLogitsProcessor, RepetitionPenaltyLogitsProcessor
    except ImportError:
        return {}
    return dict(zip(TRANSFORMERS, (RepetitionPenaltyLogitsProcessor(1.2), NoRepeatNGramLogitsProcessor(4))))


# ---------------------------------------------------------------- are they right?


def problems(cases: int = 60, seed: int = 0) -> list[str]:
    """Where the baselines written here differ from their definitions, on small histories that repeat."""
    rng, found = random.Random(seed), []
    for number in range(cases):
        ids, vocab = rng.choice((2, 4, 12)), rng.choice((12, 40))
        motif = [rng.randrange(ids) for _ in range(rng.randint(1, 5))]
        history = [rng.randrange(ids) for _ in range(rng.randint(1, 30))] + motif * rng.randint(0, 5)
        config = LZPenaltyConfig(strength=1.0, window_size=rng.randint(1, 40), buffer_size=rng.randint(1, 6))
        given = torch.tensor([history])
        dense = DensePaper(config)(given, torch.zeros(1, vocab))[0].tolist()
        want = _paper_by_reference(history, vocab, config)
        if max(abs(a - b) for a, b in zip(dense, want)) > 1e-4:
            found.append(f"dense paper penalty, case {number}")
        lowered = dry(given, torch.zeros(1, vocab))[0].tolist()
        if max(abs(a - b) for a, b in zip(lowered, _dry_by_definition(history, vocab))) > 1e-4 * -min(lowered):
            found.append(f"DRY, case {number}")
    return found


def _paper_by_reference(history: list[int], vocab: int, config: LZPenaltyConfig) -> list[float]:
    settings: dict[str, Any] = {"window_size": config.window_size, "buffer_size": config.buffer_size}
    bits = reference.adjustments(history, vocab, **settings)
    return [bits.get(token, 0.0) for token in range(vocab)]


def _dry_by_definition(history: list[int], vocab: int) -> list[float]:
    logits = [0.0] * vocab
    for end in range(1, len(history)):  # history[end] followed the tokens before it
        n = 0
        while n < end and history[end - 1 - n] == history[-1 - n]:
            n += 1
        if n >= 2:
            logits[history[end]] = min(logits[history[end]], -0.8 * 1.75 ** min(n - 2, 158))
    return logits
