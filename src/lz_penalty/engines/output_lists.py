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

__all__ = ["FIELDS", "LENGTH", "NEWEST", "SLOT", "newest_reader"]

_LOGGER = logging.getLogger("lz_penalty")

# Columns of a batch, as in output_lists.c: which history a row has, how long it is, and its newest token.
SLOT, LENGTH, NEWEST = range(3)
FIELDS = 3


def newest_reader(
    outputs: list[list[int]], rows: np.ndarray, seen: np.ndarray, capacity: int, places: np.ndarray
) -> Callable[[int, int], int] | None:
    """A function that takes the newest token of every output, if each has gained exactly one.

    Args:
        outputs: the lists; whoever calls keeps them.
        rows: int32 `[outputs]`, the row of each.
        seen: int32, by row: items of its list that were taken before.
        capacity: of a history.
        places: int32 `[places, FIELDS, all rows]`: columns of the batch at some steps.

    Returns:
        `None` where there is no C compiler. The function takes the columns of one place and writes those that follow to
        another. Its result: 1 if it has; 0 if a list has gained more or less, or a history is full; -1 if a token is
        negative. Unless it is 1, `seen` has not changed.
    """
    function = _function()
    if function is None or not all(type(output) is list for output in outputs):
        return None
    lists = (ctypes.c_void_p * len(outputs))(*map(id, outputs))
    given = (
        lists,
        rows.ctypes.data_as(ctypes.c_void_p),  # such a pointer keeps its array
        ctypes.c_size_t(len(outputs)),
        seen.ctypes.data_as(ctypes.c_void_p),
        ctypes.c_int32(capacity),
        ctypes.c_size_t(places.shape[2]),
    )
    pointers = [place.ctypes.data_as(ctypes.c_void_p) for place in places]

    def take(before: int, after: int) -> int:
        return function(*given, pointers[before], pointers[after])

    return take


@lru_cache(maxsize=None)
def _function() -> Any:
    try:
        return ctypes.PyDLL(str(build("output_lists.c", include_dir()))).lz_take_newest
    except (BackendUnavailableError, OSError) as error:
        _LOGGER.warning("the LZ penalty takes more host time per step than it could: %s", error)
        return None
