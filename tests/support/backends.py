"""The backends under test, with the library, device and dtypes each of them takes."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any, NamedTuple

import numpy as np
import torch

from lz_penalty import LZPenaltyConfig, apply_lz_penalty_, prepare_lz_penalty
from tests.support.where import DEVICE as WHERE

DEVICE = WHERE.type
_OTHERS = ("lengths", "starts", "row_to_slot", "tail_ids", "tail_lengths", "newest_ids")


def apply_ahead_(logits, token_ids, *, config, backend, vocab_size=None, **others):
    """The op as engines use it that know the newest tokens before they have the logits: in two launches from the second call.

    The history may be written in both calls, the logits are given back in between.
    """
    given = (logits, token_ids, *[others.get(name) for name in _OTHERS])
    penalise = prepare_lz_penalty(*given, config=config, vocab_size=vocab_size, backend=backend, ahead=True)
    before = logits.clone()
    penalise(*given)
    logits.copy_(before)
    return penalise(*given)


def printed_with_compiler(script: str, *arguments: str) -> str:
    """What this script prints where Triton compiles, as it does on a GPU; no GPU is needed for that."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=120).stdout


class Backend(NamedTuple):
    name: str
    library: Any
    device: str | None
    dtypes: tuple[str, ...]
    ahead: bool = False  # in two launches

    def __str__(self) -> str:
        return self.name + " ahead" * self.ahead

    @property
    def op(self) -> Any:
        return apply_ahead_ if self.ahead else apply_lz_penalty_

    def penalise(self, logits, token_ids, config: LZPenaltyConfig | list, *, dtype="float32", **given) -> list:
        """The op on plain lists: new logits as lists."""
        arrays = {key: self.integers(value) for key, value in given.items() if key != "vocab_size"}
        scores = self.floats(logits, dtype)
        settings = {key: given[key] for key in given if key == "vocab_size"}
        tokens = self.integers(token_ids)
        self.op(scores, tokens, config=config, backend=self.name, **arrays, **settings)
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
