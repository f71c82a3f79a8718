"""The newest tokens of a batch from an engine's output lists: in C where there is a compiler, since every step does it."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from lz_penalty.errors import BackendUnavailableError
from lz_penalty.native import include_dir
from lz_penalty.native.building import build

__all__ = ["newest_reader"]

_LOGGER = logging.getLogger("lz_penalty")


def newest_reader(
    outputs: list[list[int]], rows: np.ndarray, seen: np.ndarray, length: np.ndarray, newest: np.ndarray, capacity: int
) -> Callable[[], int] | None:
    """A function that takes the newest token of every output, if each has gained exactly one.

    Args:
        outputs: the lists; whoever calls keeps them.
        rows: int32 `[outputs]`, the row of each.
        seen: int32, by row: items of its list that were taken before. This and the next two are written.
        length: int32, by row: how long its history is.
        newest: int32, by row: where the token goes.
        capacity: of a history.

    Returns:
        `None` where there is no C compiler. The function's result: 1 if it has taken them; 0 if a list has gained more or
        less, or a history is full; -1 if a token is negative. Unless it is 1, nothing but `newest` has changed.
    """
    function = _function()
    if function is None or not all(type(output) is list for output in outputs):
        return None
    lists = (ctypes.c_void_p * len(outputs))(*map(id, outputs))
    arrays = [array.ctypes.data_as(ctypes.c_void_p) for array in (rows, seen, length, newest)]  # each keeps its array
    given = (lists, arrays[0], ctypes.c_size_t(len(outputs)), *arrays[1:], ctypes.c_int32(capacity))

    def take() -> int:
        return function(*given)

    return take


@lru_cache(maxsize=None)
def _function() -> Any:
    try:
        return ctypes.PyDLL(str(build("output_lists.c", include_dir()))).lz_take_newest
    except (BackendUnavailableError, OSError) as error:
        _LOGGER.warning("the LZ penalty takes more host time per step than it could: %s", error)
        return None
