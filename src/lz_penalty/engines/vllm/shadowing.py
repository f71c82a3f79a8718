"""Shadow mode on the device: how often the penalty would have changed the most likely token; nothing waits for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from lz_penalty.engines.request_settings import send

__all__ = ["Shadow"]


class Shadow:
    """Counts by slot; the caller penalises the whole batch between `save` and `compare`.

    Args:
        slots: how many.
        device: where the logits are.
    """

    def __init__(self, slots: int, device: torch.device) -> None:
        self._changed = torch.zeros(slots + 1, dtype=torch.int32, device=device)  # the last is nobody's
        self._asked: deque[tuple[torch.Tensor, Any, Callable[[int], None]]] = deque()
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

    def forget(self, slot: int) -> None:
        """Begin to count anew."""
        self._changed[slot] = 0

    def ask(self, slot: int, answer: Callable[[int], None]) -> None:
        """Call `answer` with the count of a slot, at some later step, and begin to count anew."""
        sent = self._changed[slot].to("cpu", non_blocking=True, copy=True)
        done = torch.cuda.Event() if self._changed.is_cuda else None
        if done is not None:
            done.record()
        self._asked.append((sent, done, answer))
        self.forget(slot)

    def collect(self) -> None:
        """Answer what can be answered without waiting."""
        while self._asked and (self._asked[0][1] is None or self._asked[0][1].query()):
            sent, _, answer = self._asked.popleft()
            answer(int(sent))
