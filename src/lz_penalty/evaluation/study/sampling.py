"""Sampling in which a row's result depends on its own seed alone, not on what stands beside it in the batch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from transformers import LogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

__all__ = ["draw", "uniforms", "warpers"]


def uniforms(seed: int, prompt: Sequence[int], count: int) -> torch.Tensor:
    """The random numbers of one row: float64 `[count]`, from the seed and the prompt alone.

    Penalties are compared on the same ones, which makes the comparison paired.
    """
    digest = hashlib.sha256(repr((seed, list(prompt))).encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    return torch.rand(count, dtype=torch.float64, generator=generator)


def warpers(temperature: float, top_p: float, top_k: int) -> list[LogitsProcessor]:
    """Temperature, then top-k, then top-p, as transformers does them; none of them for greedy decoding."""
    if not temperature:
        return []
    made: list[LogitsProcessor] = [TemperatureLogitsWarper(temperature)]
    if top_k:
        made.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        made.append(TopPLogitsWarper(top_p))
    return made


def draw(scores: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """For each row of `scores [rows, vocab]` the token at which the cumulative probability passes `numbers [rows]`.

    >>> draw(torch.tensor([[0.0, 0.0], [0.0, 0.0]]), torch.tensor([0.4, 0.6]))
    tensor([0, 1])
    """
    device = scores.device
    if device.type == "mps":  # which has no float64
        scores, numbers = scores.cpu(), numbers.cpu()
    reached = scores.double().softmax(-1).cumsum(-1)
    total = reached[:, -1:]
    below = torch.minimum(numbers[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))  # a token there is
    return torch.searchsorted(reached, below, right=True)[:, 0].to(device)
