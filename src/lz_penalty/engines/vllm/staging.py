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
        turn: the place whose turn it is.
        following: the one after it.
    """

    def __init__(self, columns: np.ndarray, device: torch.device) -> None:
        on_cuda = device.type == "cuda"
        self.turn, self.following = 0, 1
        self._memory = torch.zeros((_DEPTH, *columns.shape), dtype=torch.int32, pin_memory=on_cuda)
        self.places = self._memory.numpy()
        self.places[0] = columns
        self._events = [torch.cuda.Event() for _ in range(_DEPTH)] if on_cuda else []
        self._recorded: set[int] = set()  # places that may not have been read, with events that tell

    @property
    def current(self) -> np.ndarray:
        """The columns whose turn it is."""
        return self.places[self.turn]

    def fields(self, rows: int) -> list[list[torch.Tensor]]:
        """Of each place, its fields `[rows]` as the device reads them."""
        return [list(place[:, :rows]) for place in self._memory]

    def advance_quietly(self) -> np.ndarray:
        """Move on: the columns that follow have been written, in a quiet step."""
        self._recorded.clear()
        self.turn, self.following = self.following, (self.following + 1) % _DEPTH
        return self.current

    def advance(self) -> np.ndarray:
        """Move on to a place that has been read, and copy the columns there, to be changed."""
        if self._events:
            self._events[self.turn].record()
            self._recorded.add(self.turn)
            if self.following in self._recorded:
                self._events[self.following].synchronize()
                self._recorded.discard(self.following)
        self.places[self.following] = self.current
        self.turn, self.following = self.following, (self.following + 1) % _DEPTH
        return self.current
