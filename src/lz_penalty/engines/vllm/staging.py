"""A block of integers that goes to the device at every step, without waiting and without allocating."""

from __future__ import annotations

import numpy as np
import torch

__all__ = ["Staging"]

_DEPTH = 4  # buffers in turn: vLLM is at most two steps ahead of the device


class Staging:
    """Sends int32 `[fields, rows]` from pinned memory to one place on the device; all on the current stream.

    Args:
        fields: the first dimension.
        most_rows: the largest second dimension.
        device: where to.
    """

    def __init__(self, fields: int, most_rows: int, device: torch.device) -> None:
        self._fields = fields
        self._on_cpu = device.type == "cpu"
        pinned = device.type == "cuda"
        count = 0 if self._on_cpu else _DEPTH
        self._host = [torch.zeros(fields * most_rows, dtype=torch.int32, pin_memory=pinned) for _ in range(count)]
        self._read = [torch.cuda.Event() if pinned else None for _ in range(count)]
        self._device = torch.zeros(fields * most_rows, dtype=torch.int32, device=device)
        self._turn = 0
        self.resize(most_rows)

    def resize(self, rows: int) -> None:
        """From now on, blocks have this many rows."""
        size = self._fields * rows
        self._from = [block[:size] for block in self._host]
        self._views = [block.numpy().reshape(self._fields, rows) for block in self._from]
        self._to = self._device[:size]
        self.sent = self._to.view(self._fields, rows)

    def send(self, block: np.ndarray) -> None:
        """Put `block` into `sent`, behind what the device still has to do."""
        if self._on_cpu:
            self.sent.numpy()[...] = block
            return
        turn = self._turn = (self._turn + 1) % _DEPTH
        event = self._read[turn]
        if event is not None:
            event.synchronize()  # long past, unless the device is four steps behind
        self._views[turn][...] = block
        self._to.copy_(self._from[turn], non_blocking=True)
        if event is not None:
            event.record()
