"""The backends under test, with the library, device and dtypes each of them takes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from where import DEVICE as WHERE

from lz_penalty import LZPenaltyConfig, apply_lz_penalty_, prepare_lz_penalty

DEVICE = WHERE.type
OTHERS = ("lengths", "starts", "row_to_slot", "tail_ids", "tail_lengths", "newest_ids")


class Backend(NamedTuple):
    name: str
    library: Any
    device: str | None
    dtypes: tuple[str, ...]
    ahead: bool = False  # the two launches of engines that know the newest tokens before they have the logits

    def __str__(self) -> str:
        return self.name + " ahead" * self.ahead

    def penalise(self, logits, token_ids, config: LZPenaltyConfig | list, *, dtype="float32", **given) -> list:
        """The op on plain lists: new logits as lists."""
        arrays = {key: self.integers(value) for key, value in given.items() if key != "vocab_size"}
        scores = self.floats(logits, dtype)
        settings = {key: given[key] for key in given if key == "vocab_size"}
        tokens = self.integers(token_ids)
        if self.ahead:
            made = prepare_lz_penalty(
                scores, tokens, config=config, backend=self.name, ahead=True, **arrays, **settings
            )
            made(scores, tokens, *[arrays.get(name) for name in OTHERS])
        else:
            apply_lz_penalty_(scores, tokens, config=config, backend=self.name, **arrays, **settings)
        return scores.tolist()

    def floats(self, values, dtype="float32"):
        if self.library is np:
            return np.array(values, dtype=dtype)
        return torch.tensor(values, dtype=getattr(torch, dtype), device=self.device)

    def integers(self, values):
        if self.library is np:
            return np.array(values, dtype=np.int64)
        return torch.tensor(values, dtype=torch.int64, device=self.device)


ALL = (
    Backend("numpy", np, None, ("float32", "float64", "float16")),
    Backend("numba", np, None, ("float32", "float64")),
    Backend("torch", torch, DEVICE, ("float32", "float64", "float16", "bfloat16")),
    Backend("triton", torch, DEVICE, ("float32", "float64", "float16", "bfloat16")),
    Backend("triton", torch, DEVICE, ("float32", "float64", "float16", "bfloat16"), ahead=True),
)
