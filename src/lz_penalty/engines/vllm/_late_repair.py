"""`LateRepair`: replaces the placeholders in vLLM's output lists one step later than vLLM does, in C if possible."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from lz_penalty.engines.vllm._c_step import functions

__all__ = ["LateRepair"]

_PLACEHOLDER = -1
_NOWHERE = -1


class _Repairs(ctypes.Structure):
    """The fields of `struct lz_repairs`."""

    _fields_ = [
        ("lists", ctypes.c_void_p),
        ("sources", ctypes.c_void_p),
        ("places", ctypes.c_void_p),
        ("noted", ctypes.c_void_p),
        ("count", ctypes.c_size_t),
    ]


class LateRepair:
    """The output lists of one batch, and the placeholders in them whose tokens are on their way to the host.

    At each step `note` remembers the placeholder at the end of each list. At the next step `repair` replaces it: by then the
    token has arrived. So a list never has more than two placeholders, and only the last one outside of a step.

    Args:
        outputs: vLLM's list for each row.
        sources: the row of each list in the previous step; -1 if it was not in that step, or got no token.

    Attributes:
        sources: as given, int32 `[rows]`. `note` reads it.
    """

    def __init__(self, outputs: Sequence[list[int]], sources: Sequence[int]) -> None:
        self._outputs = list(outputs)
        self.sources = np.array(sources, dtype=np.int32)
        self._places = np.full(len(self._outputs), _NOWHERE, dtype=np.int32)
        self._noted = self.sources.copy()
        self._awaited: tuple[Any, Any] | None = None
        compiles = bool(self._outputs) and all(type(output) is list for output in self._outputs)
        self._compiled = functions() if compiles else None
        self._lists = (ctypes.c_void_p * len(self._outputs))(*map(id, self._outputs))
        arrays = (self.sources.ctypes.data, self._places.ctypes.data, self._noted.ctypes.data)
        self._repairs = _Repairs(ctypes.addressof(self._lists), *arrays, len(self._outputs))
        self._address = ctypes.addressof(self._repairs)

    def note(self, ids: Any, arrived: Any) -> None:
        """Note the placeholder at the end of each list.

        Args:
            ids: int32 `[rows of the previous step, 1]` in host memory: the tokens, once they have arrived.
            arrived: the event that says so.
        """
        self._awaited = ids, arrived
        if self._compiled is not None:
            self._compiled.lz_note(self._address)
        else:
            self._note_in_python()

    def repair(self) -> None:
        """Replace the noted placeholders that are still there. Wait for the tokens if they have not arrived yet."""
        if self._awaited is None:
            return
        (ids, arrived), self._awaited = self._awaited, None
        if not arrived.query():  # before the second `note` vLLM itself has waited for them
            arrived.synchronize()
        if self._compiled is not None:
            self._compiled.lz_repair(self._address, ids.data_ptr())
        else:
            self._repair_in_python(ids.flatten().tolist())

    def forget(self) -> None:
        """Drop what was noted: vLLM itself replaces the placeholders."""
        self._awaited = None

    def _note_in_python(self) -> None:
        self._noted[:] = self.sources
        for row, (output, source) in enumerate(zip(self._outputs, self.sources.tolist(), strict=True)):
            found = source >= 0 and bool(output) and output[-1] == _PLACEHOLDER
            self._places[row] = len(output) - 1 if found else _NOWHERE

    def _repair_in_python(self, ids: list[int]) -> None:
        for output, place, source in zip(self._outputs, self._places.tolist(), self._noted.tolist(), strict=True):
            if 0 <= place < len(output) and output[place] == _PLACEHOLDER:
                output[place] = ids[source]
