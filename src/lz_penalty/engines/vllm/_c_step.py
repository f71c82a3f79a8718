"""A step of vLLM's V1 runner in C (`native/vllm_step.c`): read the newest tokens, and launch the kernels."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np

from lz_penalty.errors import BackendUnavailableError
from lz_penalty.native import include_dir
from lz_penalty.native._building import load

__all__ = ["FIELDS", "LENGTH", "NEWEST", "SLOT", "NewestReader", "functions", "newest_reader", "reads_in_c"]

_LOGGER = logging.getLogger("lz_penalty")

# The fields of each row, as in vllm_step.c: the slot of its history, the history's length, and its newest token.
SLOT, LENGTH, NEWEST = range(3)
FIELDS = 3
_ARGUMENTS = ("row_to_slot", "lengths", "newest_ids")  # the op's arguments that the fields are


class _Batch(ctypes.Structure):
    """The fields of `struct lz_batch`."""

    _fields_ = [
        ("lists", ctypes.c_void_p),
        ("rows", ctypes.c_void_p),
        ("seen", ctypes.c_void_p),
        ("buffers", ctypes.c_void_p),
        ("turn", ctypes.c_void_p),
        ("count", ctypes.c_size_t),
        ("width", ctypes.c_size_t),
        ("depth", ctypes.c_size_t),
        ("capacity", ctypes.c_int32),
    ]


class _Kernel(ctypes.Structure):
    """The fields of `struct lz_kernel`."""

    _fields_ = [
        ("function", ctypes.c_void_p),
        ("parameters", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("threads", ctypes.c_uint),
        ("shared", ctypes.c_uint),
        ("early", ctypes.c_uint),
        ("logits", ctypes.c_void_p),
        ("sampled", ctypes.c_void_p),
        ("fields", ctypes.c_void_p * FIELDS),
    ]


class _Launch(ctypes.Structure):
    """The fields of `struct lz_launch`."""

    _fields_ = [
        ("launch", ctypes.c_void_p),
        ("wait", ctypes.c_void_p),
        ("record", ctypes.c_void_p),
        ("query", ctypes.c_void_p),
        ("side", ctypes.c_void_p),
        ("found", ctypes.c_void_p),
        ("find", _Kernel),
        ("lower", _Kernel),
        ("whole", _Kernel),
    ]


class NewestReader:
    """Takes the newest token of every output, if each has gained exactly one. `newest_reader` makes it."""

    def __init__(
        self,
        compiled: Any,
        outputs: list[list[int]],
        rows: np.ndarray,
        seen: np.ndarray,
        capacity: int,
        buffers: np.ndarray,
        turn: np.ndarray,
    ) -> None:
        lists = (ctypes.c_void_p * len(outputs))(*map(id, outputs))
        batch = _Batch(
            lists=ctypes.addressof(lists),
            rows=rows.ctypes.data,
            seen=seen.ctypes.data,
            buffers=buffers.ctypes.data,
            turn=turn.ctypes.data,
            count=len(outputs),
            width=buffers.shape[2],
            depth=buffers.shape[0],
            capacity=capacity,
        )
        batch.alive = (lists, outputs, rows, seen, buffers, turn)  # the structure has their addresses only
        self._functions, self._batch = compiled, ctypes.byref(batch)

    def take(self, on_device: bool = False) -> int:
        """Write the fields of the next buffer and make it the current one.

        Args:
            on_device: whether a -1 at the end of a list means a token that only the device has, in the row of the list.

        Returns:
            1 if the fields were written; 0 if a list has gained more tokens or none, or a history is full; -1 if a token is
            negative. If it does not return 1, `turn` and `seen` have not changed.
        """
        return int(self._functions.lz_take_newest(self._batch, on_device))

    def launching(self, launches: Any) -> Callable[[int, int, int, int], int]:
        """Return a function that does what `take` does and then launches the kernels: a whole step.

        Args:
            launches: the kernels, in a `lz_penalty.kernels.triton._launch.LaunchAhead`.

        Returns:
            A function of the address of the logits, the handle of the stream, and for tokens that are on the device their
            address and an event that comes after them (else 0 and 0). It returns what `take` returns, and also 0 if the
            driver refuses the first launch. It reads little memory: between two steps, vLLM's own work replaces everything
            in the CPU's caches.
        """
        launch = _Launch(
            launch=_address(launches.driver.cuLaunchKernelEx),
            wait=_address(launches.driver.cuStreamWaitEvent),
            record=_address(launches.driver.cuEventRecord),
            query=_address(launches.driver.cuEventQuery),
            side=launches.side,
            found=launches.found,
            find=_kernel(launches.find),
            lower=_kernel(launches.lower, launches.early),
            whole=_kernel(launches.whole),
        )
        launch.alive = launches  # the structure has addresses only
        return partial(self._functions.lz_take_and_launch, self._batch, ctypes.byref(launch))


def _address(function: Any) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value


def _kernel(direct: Any, early: bool = False) -> _Kernel:
    logits, sampled, *fields = map(direct.address_of, ("logits", "sampled_ids", *_ARGUMENTS))
    return _Kernel(
        direct.function,
        direct.parameters,
        direct.grid,
        direct.threads,
        direct.shared,
        early,
        logits,
        sampled,
        tuple(fields),
    )


def newest_reader(
    outputs: list[list[int]],
    rows: np.ndarray,
    seen: np.ndarray,
    capacity: int,
    buffers: np.ndarray,
    turn: np.ndarray,
) -> NewestReader | None:
    """Return a reader of these outputs; `None` if there is no C compiler, or if an output is no list.

    Args:
        outputs: vLLM's lists of output tokens, one for each request. The reader reads them anew at every step.
        rows: int32 `[outputs]`, the row of each.
        seen: int32, by row: how many items of its list were taken before.
        capacity: how many tokens a history holds.
        buffers: int32 `[buffers, FIELDS, all rows]`: the fields of the batch at some steps; see `Staging`.
        turn: int32 `[2]`: the number of the current buffer; the reader sets the second number to 1 when it takes tokens.
    """
    compiled = functions()
    if compiled is None or not all(type(output) is list for output in outputs):
        return None
    return NewestReader(compiled, outputs, rows, seen, capacity, buffers, turn)


def reads_in_c() -> bool:
    """Return whether `newest_reader` gives readers here: there is a C compiler, or the library that it made before."""
    return functions() is not None


@lru_cache(maxsize=None)
def functions() -> Any:
    """Return the compiled functions of vllm_step.c; `None`, with a warning, if there is no C compiler."""
    try:
        compiled = load("vllm_step.c", include_dir(), ctypes.PyDLL)
    except BackendUnavailableError as error:
        _LOGGER.warning("the LZ penalty takes more host time per step than it could: %s", error)
        return None
    address = ctypes.c_void_p
    compiled.lz_take_newest.argtypes = [address, ctypes.c_int]
    compiled.lz_take_and_launch.argtypes = [address, address, ctypes.c_uint64, address, ctypes.c_uint64, address]
    compiled.lz_note.argtypes, compiled.lz_note.restype = [address], None
    compiled.lz_repair.argtypes, compiled.lz_repair.restype = [address, address], None
    return compiled
