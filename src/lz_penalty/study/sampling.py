"""Sampling in which a row's result depends on its own seed alone, not on what stands beside it in the batch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from transformers import LogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from lz_penalty.evaluation.penalties import Penalty

__all__ = ["sampled", "uniforms"]


def uniforms(seed: int, prompt: Sequence[int], count: int) -> torch.Tensor:
    """The random numbers of one row: float64 `[count]`, from the seed and the prompt alone.

    Penalties are compared on the same ones, which makes the comparison paired.
    """
    digest = hashlib.sha256(repr((seed, list(prompt))).encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    return torch.rand(count, dtype=torch.float64, generator=generator)


class _Draw(LogitsProcessor):
    """Leaves one token possible: the one at which a row's cumulative probability passes its random number.

    Args:
        numbers: `[rows, steps]`.
        width: columns that are prompt.
    """

    def __init__(self, numbers: torch.Tensor, width: int) -> None:
        self.numbers, self.width = numbers, width

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores `[rows, vocab]` that are -inf but for the token drawn."""
        at = self.numbers[:, input_ids.shape[1] - self.width, None].to(scores.device)
        reached = scores.double().softmax(-1).cumsum(-1)
        total = reached[:, -1:]
        below = torch.minimum(at * total, torch.nextafter(total, torch.zeros_like(total)))  # never past the last token
        drawn = torch.searchsorted(reached, below, right=True)
        return torch.full_like(scores, -torch.inf).scatter(1, drawn, 0.0)


def sampled(penalty: Penalty, numbers: torch.Tensor, temperature: float, top_p: float, top_k: int) -> Penalty:
    """The penalty followed by temperature, top-k, top-p and the draw: taking the likeliest token is then sampling."""

    def make(tokenizer: Any, width: int) -> list[Any]:
        made = [*penalty.make(tokenizer, width), TemperatureLogitsWarper(temperature)]
        if top_k:
            made.append(TopKLogitsWarper(top_k))
        if top_p < 1:
            made.append(TopPLogitsWarper(top_p))
        return [*made, _Draw(numbers, width)]

    return Penalty(penalty.name, make, penalty.config)
