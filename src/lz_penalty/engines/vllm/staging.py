"""A block of integers that goes to the device at every step, without waiting and without allocating."""

from __future__ import annotations

import numpy as np
import torch

__all__ = ["Staging"]

_DEPTH = 4  # buffers in turn: vLLM is at most two steps ahead of the device


class Staging:
    """Sends int32 `[fields, rows]`: from pinned memory, on a stream of its own, so that the copy runs beside the model.

    Args:
        fields: the first dimension.
        most_rows: the largest second dimension.
        device: where to.
    """

    def __init__(self, fields: int, most_rows: int, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._buffers = [_Buffer(fields, most_rows, device) for _ in range(_DEPTH)]
        self._turn = 0

    def resize(self, rows: int) -> None:
        """From now on, blocks have this many rows."""
        for buffer in self._buffers:
            buffer.resize(rows)

    def send(self, block: np.ndarray) -> list[torch.Tensor]:
        """The block on the device: its first three rows, and the transpose of the others."""
        self._turn = (self._turn + 1) % _DEPTH
        return self._buffers[self._turn].send(block, self._stream)

    def done(self) -> None:
        """What reads the block is under way; its buffer is free when that has ended."""
        if self._stream is not None:
            self._buffers[self._turn].read.record()


class _Buffer:
    """One place on the host and one on the device."""

    def __init__(self, fields: int, most_rows: int, device: torch.device) -> None:
        on_cuda = device.type == "cuda"
        self._fields = fields
        self._device = torch.zeros(fields * most_rows, dtype=torch.int32, device=device)
        self._host = torch.zeros_like(self._device, device="cpu", pin_memory=on_cuda)
        if on_cuda:
            self.sent, self.read = torch.cuda.Event(), torch.cuda.Event()
        self.resize(most_rows)

    def resize(self, rows: int) -> None:
        size = self._fields * rows
        self._from, self._to = self._host[:size], self._device[:size]
        self._view = self._from.numpy().reshape(self._fields, rows)
        block = self._to.view(self._fields, rows)
        self._parts = [*block[:3], block[3:].T]

    def send(self, block: np.ndarray, stream: torch.cuda.Stream | None) -> list[torch.Tensor]:
        if stream is None:
            self._view[...] = block
            self._to.copy_(self._from)
            return self._parts
        if not self.read.query():  # the device is four steps behind
            self.read.synchronize()
        self._view[...] = block
        with torch.cuda.stream(stream):
            self._to.copy_(self._from, non_blocking=True)
            self.sent.record()
        self.sent.wait()
        return self._parts
