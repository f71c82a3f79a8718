"""Baselines for the times: a dense add, a dense implementation of the paper's penalty, and other penalties.

A baseline is a function of (history `[rows, length]`, logits `[rows, vocab]`), both torch tensors, as Hugging Face
processors are; it returns the new logits. `problems` checks the baselines of this module.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import NoRepeatNGramLogitsProcessor, RepetitionPenaltyLogitsProcessor

from lz_penalty import LZPenaltyConfig, reference
from lz_penalty.evaluation.baselines import baseline

Baseline = Callable[[Tensor, Tensor], Tensor]
TRANSFORMERS = ("repetition 1.2", "no 4-gram twice")


def bias_like(logits: Tensor) -> Tensor:
    """Return the bias of the dense add: one value per row and token, too small to change a logit."""
    return torch.full_like(logits, 1e-20)


# ---------------------------------------------------------------- the paper's penalty, dense


class DensePaper:
    """The paper's closed form in its direct form: compare each window position with each vocabulary entry.

    Its cost comes from two arrays of shape `[rows, vocab, window]`: booleans (one byte) and codelengths (four bytes).
    """

    def __init__(self, config: LZPenaltyConfig):
        self.strength, self.window, self.buffer = config.strength, config.window_size, config.buffer_size

    def needs_gb(self, rows: int, vocab: int) -> float:
        """Return the gigabytes of the two arrays."""
        return 5e-9 * rows * vocab * self.window

    def __call__(self, history: Tensor, logits: Tensor) -> Tensor:
        """Lower `logits` in place. The constant `log2 V`, which softmax ignores, is left out."""
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
        """Return the codelength of each window position's token: an extension of a longest match, or a single token."""
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
    """Return the tokens that DRY lowers after this history `[length]`, and the amounts.

    The results equal `DRYLogitsProcessor` of `lz_penalty.evaluation`, which is written for clarity and takes up to 50 times
    as long on random text. This one extends all matches together, so that DRY is not timed at a disadvantage.
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
    """Lower the logits by DRY, row by row on the host, as logits processors do."""
    for row, ids in enumerate(history.cpu().numpy()):
        tokens, penalty = dry_penalties(ids)
        if len(tokens):
            where = torch.from_numpy(tokens).to(logits.device)
            logits[row, where] -= torch.from_numpy(penalty).to(logits)
    return logits


def device_dry() -> Baseline:
    """Return DRY as the studies use it, on the device for all rows at once."""
    return baseline("dry")


# ---------------------------------------------------------------- transformers


def transformers_processors() -> dict[str, Baseline]:
    """Return Hugging Face's own penalties."""
    return dict(zip(TRANSFORMERS, (RepetitionPenaltyLogitsProcessor(1.2), NoRepeatNGramLogitsProcessor(4))))


# ---------------------------------------------------------------- checks


def problems(cases: int = 60, seed: int = 0) -> list[str]:
    """Return the cases in which a baseline of this module is wrong, on small histories that repeat."""
    rng, found, slow_dry = random.Random(seed), [], baseline("dry")
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
        want = slow_dry(given, torch.zeros(1, vocab))[0].tolist()
        if max(abs(a - b) for a, b in zip(lowered, want)) > 1e-4 * -min(lowered):
            found.append(f"DRY, case {number}")
    return found


def _paper_by_reference(history: list[int], vocab: int, config: LZPenaltyConfig) -> list[float]:
    settings: dict[str, Any] = {"window_size": config.window_size, "buffer_size": config.buffer_size}
    bits = reference.adjustments(history, vocab, **settings)
    return [bits.get(token, 0.0) for token in range(vocab)]
