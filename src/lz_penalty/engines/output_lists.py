"""The newest tokens of a batch from an engine's output lists: in C where there is a compiler, since every step does it."""

from __future__ import annotations

import ctypes
import logging
from functools import lru_cache
from typing import Any

import numpy as np

from lz_penalty.errors import BackendUnavailableError
from lz_penalty.native import include_dir
from lz_penalty.native.building import load

__all__ = ["FIELDS", "LENGTH", "NEWEST", "SLOT", "NewestReader", "newest_reader"]

_LOGGER = logging.getLogger("lz_penalty")

# Columns of a batch, as in output_lists.c: which history a row has, how long it is, and its newest token.
SLOT, LENGTH, NEWEST = range(3)
FIELDS = 3
_OF_FIELDS = ("row_to_slot", "lengths", "newest_ids")  # the op's names for them


class _Batch(ctypes.Structure):
    """`struct lz_batch`."""

    _fields_ = [
        ("lists", ctypes.c_void_p),
        ("rows", ctypes.c_void_p),
        ("seen", ctypes.c_void_p),
        ("count", ctypes.c_size_t),
        ("width", ctypes.c_size_t),
        ("capacity", ctypes.c_int32),
    ]


class _Kernel(ctypes.Structure):
    """`struct lz_kernel`."""

    _fields_ = [
        ("function", ctypes.c_void_p),
        ("parameters", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("threads", ctypes.c_uint),
        ("shared", ctypes.c_uint),
    ]


class _Launch(ctypes.Structure):
    """`struct lz_launch`."""

    _fields_ = [
        ("launch", ctypes.c_void_p),
        ("wait", ctypes.c_void_p),
        ("record", ctypes.c_void_p),
        ("side", ctypes.c_void_p),
        ("found", ctypes.c_void_p),
        ("find", _Kernel),
        ("lower", _Kernel),
        ("logits", ctypes.c_void_p),
        ("columns", ctypes.c_void_p * FIELDS),
    ]


class NewestReader:
    """Takes the newest token of every output, if each has gained exactly one; see `newest_reader`."""

    def __init__(
        self,
        functions: Any,
        outputs: list[list[int]],
        rows: np.ndarray,
        seen: np.ndarray,
        capacity: int,
        places: np.ndarray,
    ) -> None:
        lists = (ctypes.c_void_p * len(outputs))(*map(id, outputs))
        batch = _Batch(
            lists=ctypes.addressof(lists),
            rows=rows.ctypes.data,
            seen=seen.ctypes.data,
            count=len(outputs),
            width=places.shape[2],
            capacity=capacity,
        )
        self._alive: tuple[Any, ...] = (lists, outputs, rows, seen, places, batch)
        self._functions = functions
        self._batch = ctypes.c_void_p(ctypes.addressof(batch))
        self._places = [ctypes.c_void_p(place.ctypes.data) for place in places]
        self._launch: ctypes.c_void_p | None = None

    def take(self, before: int, after: int) -> int:
        """Take the columns of one place and write those that follow to another.

        Returns:
            1 if it has; 0 if a list has gained more or less, or a history is full; -1 if a token is negative. Unless it is
            1, `seen` has not changed.
        """
        return self._functions.lz_take_newest(self._batch, self._places[before], self._places[after])

    def launch_with(self, ahead: Any) -> None:
        """From now on `take_and_launch` launches these kernels, a `LaunchAhead` of the op."""
        launch = _Launch(
            launch=_address(ahead.driver.cuLaunchKernel),
            wait=_address(ahead.driver.cuStreamWaitEvent),
            record=_address(ahead.driver.cuEventRecord),
            side=ahead.side,
            found=ahead.found,
            find=_kernel(ahead.find),
            lower=_kernel(ahead.lower),
            logits=ahead.lower.value_of("logits"),
            columns=tuple(map(ahead.find.value_of, _OF_FIELDS)),
        )
        self._alive = (*self._alive, launch, ahead)
        self._launch = ctypes.c_void_p(ctypes.addressof(launch))

    def take_and_launch(self, before: int, after: int, logits: int, stream: int) -> int:
        """The same as `take`, and the kernels are launched: then it returns 2. See `LaunchAhead` for what must be through."""
        return self._functions.lz_take_and_launch(
            self._batch,
            self._places[before],
            self._places[after],
            self._launch,
            ctypes.c_uint64(logits),
            ctypes.c_void_p(stream),
        )


def _address(function: Any) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value


def _kernel(direct: Any) -> _Kernel:
    return _Kernel(direct.function, direct.parameters, direct.grid, direct.threads, direct.shared)


def newest_reader(
    outputs: list[list[int]], rows: np.ndarray, seen: np.ndarray, capacity: int, places: np.ndarray
) -> NewestReader | None:
    """A reader of these outputs; `None` where there is no C compiler.

    Args:
        outputs: the lists.
        rows: int32 `[outputs]`, the row of each.
        seen: int32, by row: items of its list that were taken before.
        capacity: of a history.
        places: int32 `[places, FIELDS, all rows]`: columns of the batch at some steps.
    """
    functions = _functions()
    if functions is None or not all(type(output) is list for output in outputs):
        return None
    return NewestReader(functions, outputs, rows, seen, capacity, places)


@lru_cache(maxsize=None)
def _functions() -> Any:
    try:
        return load("output_lists.c", include_dir(), ctypes.PyDLL)
    except BackendUnavailableError as error:
        _LOGGER.warning("the LZ penalty takes more host time per step than it could: %s", error)
        return None
