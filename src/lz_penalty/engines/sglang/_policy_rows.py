"""The rows of a step whose requests have a policy: settings by section, forced tokens, shadow mode. On the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from lz_penalty import _packing as col
from lz_penalty.engines._requests import RequestSettings, fetch, send
from lz_penalty.ops import prepare_lz_penalty

__all__ = ["PolicyRows"]


class PolicyRows:
    """What the rows of a step need beyond the penalty; `now` is called when the host knows all tokens before the sample.

    Args:
        requests: of each row, as in `history.Step`.
        settings: packs them.
        device: where the logits are.

    Attributes:
        lengths: of all rows, as the host knows them before the forward pass.
        packed: the settings of all rows. Its table is written anew when a section changes; sizes are those of the largest
            section, so that the op always stores the newest tokens and stays prepared.
    """

    def __init__(self, requests: Sequence[Any], settings: RequestSettings, device: torch.device) -> None:
        self.lengths = np.zeros(len(requests), dtype=np.int64)
        self._all = requests
        self._device = device
        self._rows = [
            row for row, request in enumerate(requests) if request is not None and request.watched is not None
        ]
        self._watched = [requests[row].watched for row in self._rows]
        self._shadow = [row for row in self._rows if requests[row].watched.shadow]
        self._sections = [watched.section for watched in self._watched]
        lines = self._lines()
        largest = np.concatenate([lines, *[requests[row].settings.lines for row in self._rows]])
        self._table = send(lines, device)
        self.packed = settings.pack(largest, self._table)
        if self._shadow:
            self._shadow_rows = send(np.array(self._shadow), device)
            self._shadow_table = send(self._shadow_lines(), device)
            self._shadow_packed = settings.pack(largest, self._shadow_table)
            self._penalise: Callable[..., Any] | None = None

    # ------------------------------------------------------------ before the penalty

    def now(self) -> None:
        """Go over to the sections of now."""
        for watched, length in zip(self._watched, self.lengths[self._rows].tolist(), strict=True):
            if watched.length != length:
                watched.late(length)
        sections = [watched.section for watched in self._watched]
        if sections != self._sections:
            self._sections = sections
            self._table.copy_(send(self._lines(), self._device))
            if self._shadow:
                self._shadow_table.copy_(send(self._shadow_lines(), self._device))

    def _lines(self) -> np.ndarray:
        """The settings table; rows in shadow mode are left alone."""
        table = np.zeros((len(self._all), col.COLUMNS), dtype=np.int32)
        shadow = set(self._shadow)
        for row, request in enumerate(self._all):
            if request is not None and request.settings is not None and row not in shadow:
                table[row] = request.line
        return table

    def _shadow_lines(self) -> np.ndarray:
        return np.stack([self._all[row].line for row in self._shadow])

    # ------------------------------------------------------------ after it

    def force(self, logits: torch.Tensor) -> None:
        """Where a marker is under way, its next token is certain, unless a grammar, which comes later, forbids it.

        A tokenizer may have tokens that the model does not know.
        """
        forced = [
            (row, watched.forced)
            for row, watched in zip(self._rows, self._watched, strict=True)
            if watched.forced is not None and watched.forced < logits.shape[1]
        ]
        if forced:
            rows, tokens = send(np.array(forced).T.copy(), self._device)
            certain = np.full(len(forced), min(1e30, torch.finfo(logits.dtype).max / 16), dtype=np.float32)
            logits.index_put_((rows, tokens), send(certain, self._device).to(logits.dtype))

    def compare(
        self, logits: torch.Tensor, tokens: torch.Tensor, lengths: torch.Tensor, row_to_slot: torch.Tensor
    ) -> None:
        """Penalise a copy of the rows in shadow mode, and note where the most likely token becomes another."""
        if not self._shadow:
            return
        before = logits.index_select(0, self._shadow_rows)
        after = before.clone()
        slots = row_to_slot.index_select(0, self._shadow_rows)
        given = (after, tokens, lengths.index_select(0, self._shadow_rows), None, slots)
        if self._penalise is None:
            self._penalise = prepare_lz_penalty(*given, config=self._shadow_packed)
        self._penalise(*given)
        differs = _OnItsWay(before.argmax(-1) != after.argmax(-1))
        for i, row in enumerate(self._shadow):
            self._all[row].watched.would_differ = differs.getter(i)


class _OnItsWay:
    """Flags on the device that the host will want when it has the step's tokens, which come later: nothing waits."""

    def __init__(self, flags: torch.Tensor) -> None:
        self._flags, self._event = fetch(flags)

    def getter(self, i: int) -> Callable[[], bool]:
        return lambda: self._get(i)

    def _get(self, i: int) -> bool:
        if self._event is not None:
            self._event.synchronize()
        return bool(self._flags[i])
