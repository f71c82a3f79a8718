"""A few numbers per row that a kernel reads from pinned host memory at every step, without a copy or an allocation.

Where memory cannot be pinned, every step copies them to the device.
"""

from __future__ import annotations

import numpy as np
import torch

from lz_penalty.engines._device import pins

__all__ = ["Staging"]

_DEPTH = 4


class Staging:
    """Columns int32 `[fields, rows]` in a few buffers of host memory, used in turn.

    A buffer is rewritten only after the device has read it. C takes the tokens of a step only if every request has one that
    was sampled after the previous step. So the device has read everything, and the driver, whose calls cost the most here,
    need not be asked. Other steps record events.

    Args:
        columns: their first values.
        device: where they are read.

    Attributes:
        buffers: all buffers, `[buffers, fields, rows]`.
        turn: int32 `[2]`: the number of the current buffer; whether C has gone to another since the last `advance`.
        is_read_in_place: whether the device reads the host's memory; if not, `publish` must be called.
    """

    def __init__(self, columns: np.ndarray, device: torch.device) -> None:
        pinned = pins(device)
        self.is_read_in_place = _reads_host_memory(device)
        self.turn = np.zeros(2, np.int32)
        self._memory = torch.zeros((_DEPTH, *columns.shape), dtype=torch.int32, pin_memory=pinned)
        self.buffers = self._memory.numpy()
        self.buffers[0] = columns
        self._events = [torch.cuda.Event() for _ in range(_DEPTH)] if pinned else []
        self._copy = None if self.is_read_in_place else self._memory[0].to(device, copy=True)
        self._recorded: set[int] = set()  # buffers that may not have been read; their events tell

    @property
    def current(self) -> np.ndarray:
        """The columns of the current buffer."""
        return self.buffers[self.turn[0]]

    def fields(self, rows: int) -> list[list[torch.Tensor]]:
        """Return the fields `[rows]` of each buffer, as the device reads them."""
        if self._copy is not None:
            return [list(self._copy[:, :rows])] * _DEPTH
        return [list(buffer[:, :rows]) for buffer in self._memory]

    def publish(self) -> None:
        """Let the device read the current columns. If it cannot read host memory, wait for a copy."""
        if self._copy is not None:
            self._copy.copy_(self._memory[self.turn[0]])

    def advance(self) -> np.ndarray:
        """Go to the next buffer, wait until the device has read it, and return a copy of the columns there, to be changed."""
        turn, went_in_c = self.turn.tolist()
        following = (turn + 1) % _DEPTH
        if self._events:
            if went_in_c:
                self._recorded.clear()
            self._events[turn].record()
            self._recorded.add(turn)
            if following in self._recorded:
                self._events[following].synchronize()
                self._recorded.discard(following)
        self.buffers[following] = self.buffers[turn]
        self.turn[:] = following, 0
        return self.current


def _reads_host_memory(device: torch.device) -> bool:
    return device.type == "cpu" or pins(device)
