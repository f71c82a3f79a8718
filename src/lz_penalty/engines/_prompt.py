"""`LearnedPrompt`: where a prompt ends, for logits processors that are called with ids alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

__all__ = ["LearnedPrompt"]

MAX_GENERATIONS = 1_024
MAX_IDS = 2**20  # of all prompts that are kept; the newest is always kept
END, LONGEST, HASH, SIZE = range(4)  # the rows of the table
FACTOR = 6_364_136_223_846_793_005  # any large odd number


class LearnedPrompt:
    """Learns where the prompt ends: the first call of a generation has the ids of the prompt and nothing else.

    Every way of decoding calls a processor at each length, also with drafts, which later calls may take back. So a call
    continues a generation if its ids begin with that prompt and are at most one longer than the longest so far. Any other
    call begins a new generation. If several prompts fit, the generation that was called last is continued. The newest 1,024
    generations are known, so that those of a batch may take turns; fewer of them if their prompts are long.
    """

    def __init__(self) -> None:
        self._prompts: list[Any] = []  # of each generation, the newest first
        self._table = np.zeros((4, MAX_GENERATIONS), np.int64)  # a column for each of them

    def end(self, ids: Any) -> int:
        """Return where the prompt of `ids [..., length]` ends: NumPy arrays, or torch tensors of one device.

        In NumPy arrays this takes one or two comparisons, if no prompt begins with another. On a GPU it waits for each
        comparison, of which there is one if the generation was called last, and copies nothing to the host.
        """
        length = ids.shape[-1]
        for place in self._fitting(ids):
            prompt = self._prompts[place]
            if _equal(ids[..., : prompt.shape[-1]], prompt):
                self._put_first(place, self._prompts.pop(place), self._table[:, place].tolist())
                self._table[LONGEST, 0] = max(self._table[LONGEST, 0], length)
                return prompt.shape[-1]
        del self._prompts[MAX_GENERATIONS - 1 :]
        column = [length, length, _hashes(ids)[-1] if isinstance(ids, np.ndarray) else 0, prod(ids.shape)]
        self._put_first(len(self._prompts), _copied(ids), column)
        kept = np.cumsum(self._table[SIZE, : len(self._prompts)])
        del self._prompts[max(1, int(np.searchsorted(kept, MAX_IDS, side="right"))) :]
        return length

    def _fitting(self, ids: Any) -> Iterator[int]:
        """Yield the places of the generations that the ids may continue, the newest first."""
        table, length = self._table[:, : len(self._prompts)], ids.shape[-1]
        fitting = np.flatnonzero((table[END] <= length) & (length <= table[LONGEST] + 1))
        yield from fitting[:1].tolist()
        rest = fitting[1:]
        if len(rest) and isinstance(ids, np.ndarray):
            rest = rest[_hashes(ids)[table[END, rest]] == table[HASH, rest]]
        yield from rest.tolist()

    def _put_first(self, place: int, prompt: Any, column: list[int]) -> None:
        """Put a generation first; those before this place move by one."""
        self._prompts.insert(0, prompt)
        self._table[:, 1 : place + 1] = self._table[:, :place]
        self._table[:, 0] = column


def _hashes(ids: np.ndarray) -> np.ndarray:
    """Return a hash of the first 0, 1, 2, ... columns of `ids [..., length]`, modulo 2**64."""
    rows = ids.reshape(prod(ids.shape[:-1]), ids.shape[-1]).astype(np.int64)
    column = (rows * _powers(len(rows).bit_length())[: len(rows), None]).sum(0)
    return np.append(np.int64(0), np.cumsum(column * _powers(len(column).bit_length())[: len(column)]))


@lru_cache(maxsize=None)
def _powers(bits: int) -> np.ndarray:
    return np.cumprod(np.full(2**bits, FACTOR, np.int64))


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    return one.shape == other.shape and bool((one == other).all())


def _copied(ids: Any) -> Any:
    return ids.copy() if isinstance(ids, np.ndarray) else ids.clone()
