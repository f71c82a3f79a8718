"""A few numbers per row that a kernel reads from pinned host memory at every step, without a copy or an allocation.

Where memory cannot be pinned, every step copies them to the device.
"""

from __future__ import annotations

import numpy as np
import torch

from lz_penalty.engines._device import pins

__all__ = ["Staging"]

_BUFFERS = 4


class Staging:
    """Numbers int32 `[fields, rows]` in a few buffers of host memory, of which each step uses the next one.

    A buffer must not be rewritten before the device has read it. When Python goes to the next buffer, it records a CUDA event
    after the last use of the old one, and waits for the event of the new one. C does neither, which saves time. This is safe:
    vLLM prepares a step only when the device is through with the step before the previous one. So the device may still have
    to read the last two buffers, and C writes to another one.

    Args:
        fields: the first values.
        device: where the numbers are read.

    Attributes:
        buffers: all buffers, `[buffers, fields, rows]`.
        turn: int32 `[2]`: the number of the current buffer, and 1 if C went to it. C reads and writes this array too.
        is_read_in_place: whether the device reads the buffers themselves. If not, it reads a copy, which `publish` makes.
    """

    def __init__(self, fields: np.ndarray, device: torch.device) -> None:
        pinned = pins(device)
        self.is_read_in_place = _reads_host_memory(device)
        self.turn = np.zeros(2, np.int32)
        self._memory = torch.zeros((_BUFFERS, *fields.shape), dtype=torch.int32, pin_memory=pinned)
        self.buffers = self._memory.numpy()
        self.buffers[0] = fields
        self._events = [torch.cuda.Event() for _ in range(_BUFFERS)] if pinned else []
        self._copy = None if self.is_read_in_place else self._memory[0].to(device, copy=True)
        self._recorded: set[int] = set()  # buffers that may not have been read; their events tell

    @property
    def current(self) -> np.ndarray:
        """The current buffer."""
        return self.buffers[self.turn[0]]

    def as_device_reads(self, rows: int) -> list[list[torch.Tensor]]:
        """Return for each buffer its fields, each for the first `rows` rows, where the device reads them."""
        if self._copy is not None:
            return [list(self._copy[:, :rows])] * _BUFFERS
        return [list(buffer[:, :rows]) for buffer in self._memory]

    def publish(self) -> None:
        """Let the device read the current buffer. If it cannot read host memory, copy the buffer and wait for that."""
        if self._copy is not None:
            self._copy.copy_(self._memory[self.turn[0]])

    def advance(self) -> np.ndarray:
        """Go to the next buffer, wait until the device has read it, copy the current one into it, and return it."""
        turn, went_in_c = self.turn.tolist()
        following = (turn + 1) % _BUFFERS
        if self._events:
            used = {turn}
            if went_in_c:
                used.add((turn - 1) % _BUFFERS)
                self._recorded.clear()
            for buffer in used:
                self._events[buffer].record()
            self._recorded |= used
            if following in self._recorded:
                self._events[following].synchronize()
                self._recorded.discard(following)
        self.buffers[following] = self.buffers[turn]
        self.turn[:] = following, 0
        return self.current


def _reads_host_memory(device: torch.device) -> bool:
    return device.type == "cpu" or pins(device)
