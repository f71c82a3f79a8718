"""A few numbers per row that the kernel fetches from pinned host memory at every step: no copy, no allocation."""

from __future__ import annotations

import numpy as np
import torch

__all__ = ["Staging"]

_DEPTH = 4


class Staging:
    """Columns int32 `[fields, rows]` in a few places of host memory in turn, none rewritten before the device has read it.

    In a quiet step every request has a token that was sampled after the step before: so the device has read all that
    was written, and nothing need be asked of the driver, which costs more than all else here. Other steps record events.

    Args:
        columns: the first ones.
        device: where they are read.

    Attributes:
        places: all of them, `[places, fields, rows]`.
        turn: int32 `[2]`: the place whose turn it is; whether there was a quiet step, which moves on by itself.
    """

    def __init__(self, columns: np.ndarray, device: torch.device) -> None:
        on_cuda = device.type == "cuda"
        self.turn = np.zeros(2, np.int32)
        self._memory = torch.zeros((_DEPTH, *columns.shape), dtype=torch.int32, pin_memory=on_cuda)
        self.places = self._memory.numpy()
        self.places[0] = columns
        self._events = [torch.cuda.Event() for _ in range(_DEPTH)] if on_cuda else []
        self._recorded: set[int] = set()  # places that may not have been read, with events that tell

    @property
    def current(self) -> np.ndarray:
        """The columns whose turn it is."""
        return self.places[self.turn[0]]

    def fields(self, rows: int) -> list[list[torch.Tensor]]:
        """Of each place, its fields `[rows]` as the device reads them."""
        return [list(place[:, :rows]) for place in self._memory]

    def advance(self) -> np.ndarray:
        """Move on to a place that has been read, and copy the columns there, to be changed."""
        turn, quiet = self.turn.tolist()
        following = (turn + 1) % _DEPTH
        if self._events:
            if quiet:
                self._recorded.clear()
            self._events[turn].record()
            self._recorded.add(turn)
            if following in self._recorded:
                self._events[following].synchronize()
                self._recorded.discard(following)
        self.places[following] = self.places[turn]
        self.turn[:] = following, 0
        return self.current
