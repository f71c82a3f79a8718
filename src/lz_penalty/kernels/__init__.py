"""The backends: each computes the penalty with one array library, and all of them keep one contract.

A backend is a module or package of this folder with one public function, `prepare`, which `Backend` describes:

    step = backend.prepare(arrays, packed, vocab_size)  # once
    step(*arrays)                                       # as often as needed

A backend imports its own array library only. It neither checks its arguments nor falls back to another backend:
`lz_penalty.ops` has checked them, and `lz_penalty._backends` knows which backend runs where. docs/architecture.md
says where a new backend is named.

For every occurrence of a token in the window, all backends take the token's logit from before the step and add `strength *
bits`. If a token occurs several times, the smallest result counts, as in the definition. No adjustment is positive, so no logit
rises, and no backend needs a table over the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from lz_penalty._packing import PackedConfig


class Step(Protocol):
    """A function that penalises logits in place and returns them. That of MLX, whose arrays cannot change, returns new ones.

    Its arrays are those of `lz_penalty.apply_lz_penalty_`, with the shapes, strides, dtypes and devices of the arrays
    for which it was prepared. It does not check that.
    """

    def __call__(
        self, logits, token_ids, lengths=None, starts=None, row_to_slot=None, tail_ids=None, tail_lengths=None,
        newest_ids=None, sampled_ids=None,
    ) -> Any:  # fmt: skip
        """Penalise the logits of one step. Only a step that was prepared with `sampled_ids` takes them."""


class Backend(Protocol):
    """What a module of this folder provides."""

    def prepare(self, arrays: tuple[Any, ...], packed: PackedConfig, vocab_size: int, *, ahead: bool = False) -> Step:
        """Return a step for arrays like these.

        Args:
            arrays: the eight arrays of `Step`, in that order, `None` where one is not used. There is at least one row. Only
                Triton may get a ninth: the `sampled_ids` of `lz_penalty.prepare_lz_penalty`, which its step then takes too.
            packed: the settings. An engine may write others into the table between two steps, so a step reads it anew.
            vocab_size: the alphabet, at most as wide as the logits.
            ahead: as in `lz_penalty.prepare_lz_penalty`; a backend without a use for it ignores it.
        """


def on_numpy(penalise: Callable[..., None]) -> Step:
    """Return a step that stores the newest tokens and calls `penalise` with the other arrays, as NumPy arrays."""

    def step(
        logits, token_ids, lengths=None, starts=None, row_to_slot=None, tail_ids=None, tail_lengths=None, newest_ids=None
    ):  # fmt: skip
        arrays = (logits, token_ids, lengths, starts, row_to_slot, tail_ids, tail_lengths, newest_ids)
        if not isinstance(logits, np.ndarray):
            arrays = tuple(None if array is None else array.detach().numpy() for array in arrays)
        if newest_ids is not None:
            _, token_ids, lengths, _, row_to_slot, _, _, newest_ids = arrays
            rows = np.flatnonzero((newest_ids >= 0) & (lengths > 0))
            token_ids[rows if row_to_slot is None else row_to_slot[rows], lengths[rows] - 1] = newest_ids[rows]
        penalise(*arrays[:-1])
        return logits

    return step
