"""`Rows`: the generations of the rows of a batch of `generate`, found again from the ids of each call."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
import torch

from lz_penalty.engines._generation import Generation

__all__ = ["Rows"]


class Rows:
    """The generations of the rows of a batch. They depend on the ids alone: what is remembered only saves work.

    A tensor of ids may be written to between two calls, but only through PyTorch, not through a NumPy array.

    Args:
        make: makes a generation from a prompt's ids.
        prompt_length: where outputs begin, padding included. `None`: after the first ids that are read.
        ends: ids that end a row. `generate` pads it from there on, so of several in a row only the first is read.
        only_appended: `generate` does nothing but append a token to every row. Then only the newest ids are read. Else
            all are compared with those of the previous call, since beams move and drafts are refused.

    Attributes:
        generations: one for each row.
        ended: which rows have ended.
        starts: `[rows]`, where each row begins; `None` if all begin with their first id.
        settled: whether `starts` stays as it is while tokens are appended. If not, a row is all padding, which may go on.
    """

    def __init__(
        self,
        make: Callable[[Sequence[int]], Generation],
        prompt_length: int | None,
        ends: Collection[int],
        only_appended: bool = False,
    ) -> None:
        self.generations: list[Generation] = []
        self.ended: list[bool] = []
        self.starts: torch.Tensor | None = None
        self.settled = False
        self._make = make
        self._prompt_length = prompt_length
        self._ends = frozenset(ends)
        self._only_appended = only_appended
        self._length = -1  # of the rows of the last call
        self._read: torch.Tensor | None = None  # the ids of the last call
        self._version = 0  # how often PyTorch had written to them
        self._ids: list[bytes] = []  # the same ids: nothing compares and copies faster than bytes
        self._starts: list[int] = []
        self._bases: list[int] = []  # where the output of each row begins

    def read(self, ids: torch.Tensor, starts: Callable[[torch.Tensor], torch.Tensor | None]) -> bool:
        """Read `ids [rows, length]`; return whether section, forced token or end of any row may have changed.

        On a GPU this waits for the newest ids, or for all of them if tokens are not only appended.

        Args:
            ids: all tokens so far.
            starts: returns `[rows]`, where each row of the ids begins. Called only if the rows are not those of the last call.
        """
        if ids is self._read and (self._only_appended or ids._version == self._version):
            return False  # the stopping criterion had them before the processor
        rows, length = ids.shape
        grown = length - self._length
        if self._only_appended and rows == len(self.generations) and 0 <= grown <= 1:
            if not grown:
                return False
            self._length, self._read = length, ids
            if not ids.is_cpu:
                return self._push(ids[:, -1].tolist())
            array = ids.numpy()
            return self._push([array.item(-1)] if rows == 1 else array[:, -1].tolist())
        if self._only_appended or ids.is_inference():  # its version is not counted
            self._read = None
        else:
            self._read, self._version = ids, ids._version
        array = ids.numpy() if ids.is_cpu else ids.cpu().numpy()
        known, self._length = self._ids, length
        if not self._only_appended:
            self._ids = _bytes(array)
            if rows == len(self.generations) and 0 <= grown <= 1 and all(map(bytes.startswith, self._ids, known)):
                return self._push(array[:, -1].tolist()) if grown else False
        self.starts = starts(ids)
        begins = [0] * rows if self.starts is None else self.starts.tolist()
        self.settled = max(begins, default=0) < length
        self._move_to(array, begins, known)
        return True

    def _push(self, newest: list[int]) -> bool:
        changed = False
        ends, ended = self._ends, self.ended
        for row, (token, generation) in enumerate(zip(newest, self.generations)):
            if token in ends:
                if ended[row]:
                    continue
                ended[row] = True
            elif ended[row]:
                ended[row] = False
            if generation.push(token):
                changed = True
        return changed

    # ------------------------------------------------------------ rows that are not those of the last call

    def _move_to(self, array: np.ndarray, starts: list[int], known: list[bytes]) -> None:
        """Find the generations of these rows: prompts are new, beams have moved, or drafts were refused."""
        width = len(known[0]) if known else 0
        places = {row: i for i, row in enumerate(zip(self._starts, known))}
        before = list(zip(self.generations, self.ended, self._starts, self._bases, known))
        self.generations, self.ended, self._bases = [], [], []
        for i, (row, start) in enumerate(zip(array, starts, strict=True)):
            same = places.get((start, row.tobytes()[:width]), i)  # a beam that moved, or the row itself
            generation, ended, base = self._taken_over(row, start, before[same] if same < len(before) else None)
            self.generations.append(generation)
            self.ended.append(ended)
            self._bases.append(base)
        self._starts = starts

    def _taken_over(self, row: np.ndarray, start: int, known: tuple | None) -> tuple[Generation, bool, int]:
        """Return the generation of a row: a known one, rewound to where the two rows differ, or a new one."""
        if known is not None:
            generation, ended, its_start, base, ids = known
            other = np.frombuffer(ids, row.dtype)
            common = _common(row, other)
            back = len(other) - common
            if its_start == start and not ended and base <= common and back <= generation.rewindable:
                generation = generation.copy()
                generation.rewind(back)
                return generation, self._read_on(generation, row[common:]), base
        base = len(row) if self._prompt_length is None else min(self._prompt_length, len(row))
        generation = self._make(row[min(start, base) : base].tolist())
        return generation, self._read_on(generation, row[base:]), base

    def _read_on(self, generation: Generation, ids: np.ndarray) -> bool:
        """Read these ids; return whether the row has ended with them."""
        ended = False
        for token in ids.tolist():
            if not (ended and token in self._ends):
                generation.push(token)
            ended = token in self._ends
        return ended


def _bytes(array: np.ndarray) -> list[bytes]:
    """Return the rows of an array as bytes."""
    if len(array) == 1:
        return [array.tobytes()]
    whole, width = array.tobytes(), array.shape[1] * array.itemsize
    return [whole[i * width : (i + 1) * width] for i in range(len(array))]


def _common(one: np.ndarray, other: np.ndarray) -> int:
    """Return how many ids two rows have in common at their beginning."""
    shorter = min(len(one), len(other))
    differs = one[:shorter] != other[:shorter]
    return int(differs.argmax()) if differs.any() else shorter
