"""The rows of a step whose requests have a policy: settings by section, shadow mode and forced tokens, on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from lz_penalty import _packing as col
from lz_penalty.engines._device import Shadow, force_, send
from lz_penalty.engines._requests import SettingsReader

__all__ = ["PolicyRows"]


class PolicyRows:
    """What a step with policies does before and after the penalty, when the host knows all tokens before the sample.

    Args:
        requests: of each row, as in `Step`.
        settings: packs them.
        device: where the logits are.

    Attributes:
        lengths: of all rows, as the host knows them before the forward pass.
        packed: the settings of all rows. Its table is rewritten when a section changes. Its sizes are those of the largest
            section, so that the op stays prepared and always stores the newest tokens.
    """

    def __init__(self, requests: Sequence[Any], settings: SettingsReader, device: torch.device) -> None:
        self.lengths = np.zeros(len(requests), dtype=np.int64)
        self._requests = requests
        self._device = device
        self._rows = [
            (row, one, one.generation)
            for row, one in enumerate(requests)
            if one is not None and one.generation is not None
        ]
        self._sections = [generation.section for *_, generation in self._rows]
        self._shadowed = [generation for *_, generation in self._rows if generation.shadow]
        self._shadow = Shadow(device)
        self._shadow.choose([row for row, _, generation in self._rows if generation.shadow])
        settings_rows = self._settings_rows()
        self._table = send(settings_rows, device)
        largest = np.concatenate([settings_rows, *[generation.settings_rows for *_, generation in self._rows]])
        self.packed = settings.pack(largest, self._table)

    def _settings_rows(self) -> np.ndarray:
        """Return the settings row of every row."""
        table = np.zeros((len(self._requests), col.COLUMNS), dtype=np.int32)
        for row, request in enumerate(self._requests):
            if request is not None and request.settings is not None:
                table[row] = request.settings_row
        return table

    def before_penalty(self, logits: torch.Tensor) -> None:
        """Send the settings of the current sections, and keep the logits of rows in shadow mode."""
        for row, request, generation in self._rows:
            length = self.lengths[row]
            if len(generation.prompt) + generation.length != length:
                request.follower.late(length)
        sections = [generation.section for *_, generation in self._rows]
        if sections != self._sections:
            self._sections = sections
            self._table.copy_(send(self._settings_rows(), self._device))
        self._shadow.save(logits)

    def after_penalty(self, logits: torch.Tensor) -> None:
        """Undo the penalty of rows in shadow mode, and force tokens, which a later grammar may still forbid."""
        flags = self._shadow.restore(logits)
        if flags is not None:
            for i, generation in enumerate(self._shadowed):
                generation.note(flags, i)
        for row, _, generation in self._rows:
            if generation.forced is not None:
                force_(logits, row, generation.forced, "to come")
