"""A few numbers per row that the kernel fetches from pinned host memory at every step: no copy, no allocation.

Where memory cannot be pinned, they are copied to the device at every step.
"""

from __future__ import annotations

import numpy as np
import torch

from lz_penalty.engines._requests import pins

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
        is_read_in_place: whether the device reads the host's memory itself; if not, `publish` must be called.
    """

    def __init__(self, columns: np.ndarray, device: torch.device) -> None:
        pinned = pins(device)
        self.is_read_in_place = _reads_host_memory(device)
        self.turn = np.zeros(2, np.int32)
        self._memory = torch.zeros((_DEPTH, *columns.shape), dtype=torch.int32, pin_memory=pinned)
        self.places = self._memory.numpy()
        self.places[0] = columns
        self._events = [torch.cuda.Event() for _ in range(_DEPTH)] if pinned else []
        self._copy = None if self.is_read_in_place else self._memory[0].to(device, copy=True)
        self._recorded: set[int] = set()  # places that may not have been read, with events that tell

    @property
    def current(self) -> np.ndarray:
        """The columns whose turn it is."""
        return self.places[self.turn[0]]

    def fields(self, rows: int) -> list[list[torch.Tensor]]:
        """Of each place, its fields `[rows]` as the device reads them."""
        if self._copy is not None:
            return [list(self._copy[:, :rows])] * _DEPTH
        return [list(place[:, :rows]) for place in self._memory]

    def publish(self) -> None:
        """Let the device read the columns whose turn it is; where it cannot do so here, this waits for a copy."""
        if self._copy is not None:
            self._copy.copy_(self._memory[self.turn[0]])

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


def _reads_host_memory(device: torch.device) -> bool:
    return device.type == "cpu" or pins(device)
