"""A few numbers per row that the kernel fetches from pinned host memory at every step: no copy, no allocation."""

from __future__ import annotations

import numpy as np
import torch

__all__ = ["Staging"]

_DEPTH = 4  # buffers in turn


class Staging:
    """Copies of int32 `[fields, rows]` in a few places of host memory, none rewritten before the device has read it.

    In a quiet step every request has a token that was sampled after the step before: so the device has read all that
    was posted, and nothing need be asked of the driver, which costs more than all else here. Around other steps events
    are recorded.

    Args:
        source: what is copied, `[fields, most rows]`.
        device: where the copies are read.
    """

    def __init__(self, source: np.ndarray, device: torch.device) -> None:
        on_cuda = device.type == "cuda"
        self._all = source
        self._memory = [torch.zeros(source.size, dtype=torch.int32, pin_memory=on_cuda) for _ in range(_DEPTH)]
        self._read = [torch.cuda.Event() for _ in range(_DEPTH)] if on_cuda else []
        self._turn = 0
        self._quiet = True  # whether the copy posted last has no event
        self._unread = [False] * _DEPTH  # whether an event tells when it has been read
        self.resize(source.shape[1])

    def resize(self, rows: int) -> None:
        """From now on, the first rows are copied, this many."""
        self._source = self._all[:, :rows]
        blocks = [memory[: self._source.size].view(self._source.shape) for memory in self._memory]
        self._views = [block.numpy() for block in blocks]
        self._blocks = [list(block) for block in blocks]

    def post(self, *, quiet: bool) -> list[torch.Tensor]:
        """A copy's fields, each `[rows]`, where the device can read them until `posted` is called and it has."""
        if self._read:
            if quiet:
                self._unread = [False] * _DEPTH
            else:
                self._wait_for_a_buffer()
        self._turn = (self._turn + 1) % _DEPTH
        self._quiet = quiet
        np.copyto(self._views[self._turn], self._source)
        return self._blocks[self._turn]

    def posted(self) -> None:
        """What reads the copy has been launched."""
        if self._read and not self._quiet:
            self._read[self._turn].record()
            self._unread[self._turn] = True

    def _wait_for_a_buffer(self) -> None:
        if self._quiet:
            self._read[self._turn].record()
            self._unread[self._turn] = True
        following = (self._turn + 1) % _DEPTH
        if self._unread[following]:
            self._read[following].synchronize()
            self._unread[following] = False
