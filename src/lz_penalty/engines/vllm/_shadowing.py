"""Shadow mode on the device: how often the penalty would have changed the most likely token; nothing waits for it."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import torch

from lz_penalty.engines._requests import fetch, send
from lz_penalty.engines.vllm._following import Followed

__all__ = ["Shadow"]


class Shadow:
    """Counts by slot; the caller penalises the whole batch between `save` and `compare`.

    Args:
        slots: how many.
        device: where the logits are.
    """

    def __init__(self, slots: int, device: torch.device) -> None:
        self._changed = torch.zeros(slots + 1, dtype=torch.int32, device=device)  # the last is nobody's
        self._asked: deque[tuple[torch.Tensor, Any, Followed]] = deque()
        self._rows = self._slots = torch.zeros(0, dtype=torch.int64, device=device)
        self._chosen: tuple[list[int], list[int | None]] = ([], [])
        self._saved: torch.Tensor | None = None

    def choose(self, rows: list[int], slots: list[int | None]) -> None:
        """These rows are in shadow mode, until others are named; `None`: not counted."""
        slots = [self._changed.shape[0] - 1 if slot is None else slot for slot in slots]
        if self._chosen == (rows, slots):
            return
        self._chosen = (rows, slots)
        self._rows, self._slots = (send(np.array(one, dtype=np.int64), self._changed.device) for one in (rows, slots))

    def save(self, logits: torch.Tensor) -> None:
        """Before the penalty."""
        self._saved = logits.index_select(0, self._rows) if len(self._rows) else None

    def compare(self, logits: torch.Tensor) -> None:
        """Behind the penalty: count, and put the rows back as they were, to the bit."""
        if self._saved is not None:
            changed = self._saved.argmax(1) != logits.index_select(0, self._rows).argmax(1)
            before = self._changed.index_select(0, self._slots)
            self._changed.index_copy_(0, self._slots, before + changed)
            logits.index_copy_(0, self._rows, self._saved)

    def step(self, slot: int, followed: Followed) -> None:
        """A token is chosen for a request in shadow mode."""
        if followed.is_first:  # and perhaps thrown away: begin anew
            followed.steps = 0
            self._changed[slot].zero_()
        followed.steps += 1

    def settle(self, slot: int, followed: Followed) -> None:
        """A request has left its slot: count what it did, at some later step if that must come from the device."""
        if not followed.shadow:
            followed.settle()
            return
        self._asked.append((*fetch(self._changed[slot]), followed))
        self._changed[slot].zero_()

    def collect(self) -> None:
        """Count what has come."""
        while self._asked and (self._asked[0][1] is None or self._asked[0][1].query()):
            sent, _, followed = self._asked.popleft()
            followed.settle(int(sent))
