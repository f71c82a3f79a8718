"""The penalty in C: one header, `lz_penalty.h`, compiled on demand and called through ctypes.

C and C++ programs pass the folder `include_dir()` to their compiler. Python, on a machine with a compiler:

    penalty = NativePenalty.load(LZPenaltyConfig.guarded())  # None, and a warning that says why, if it cannot be built
    penalty.apply_(logits, tokens)                           # float32 [vocab] and int32 [n], NumPy
"""

from __future__ import annotations

import ctypes
import logging
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from lz_penalty.config import LZPenaltyConfig
from lz_penalty.errors import BackendUnavailableError, LZPenaltyError, show
from lz_penalty.native._building import load

__all__ = ["NativePenalty", "include_dir", "native_settings"]

_LOGGER = logging.getLogger("lz_penalty")
_FLOAT, _INTEGER = np.dtype(np.float32).str, np.dtype(np.int32).str
_CONTIGUOUS = (4,)
_FORMULAS = {"paper": 0, "sglang": 1}
_LOOKBACKS = {"before_buffer": 0, "adjacent": 1}


def include_dir() -> Path:
    """Return the folder that contains `lz_penalty.h`."""
    return Path(__file__).parent


class NativeSettings(ctypes.Structure):
    """`lz_penalty_settings` of the header."""

    _fields_ = (
        ("strength", ctypes.c_double),
        ("escalation", ctypes.c_double),
        ("gate_low", ctypes.c_double),
        ("gate_high", ctypes.c_double),
        ("formula", ctypes.c_int32),
        ("lookback", ctypes.c_int32),
        ("window_size", ctypes.c_int32),
        ("buffer_size", ctypes.c_int32),
        ("min_match_length", ctypes.c_int32),
        ("loop_window", ctypes.c_int32),
        ("gate_window", ctypes.c_int32),
        ("gate_from", ctypes.c_int32),
        ("exempt_ids", ctypes.POINTER(ctypes.c_int32)),
        ("exempt_count", ctypes.c_int32),
    )


def native_settings(config: LZPenaltyConfig) -> NativeSettings:
    """Return a config as the C structure, which keeps the exempt ids alive."""
    ids = config.exempt_token_ids
    return NativeSettings(
        config.strength,
        config.escalation,
        config.gate_low or 0.0,
        config.gate_high or 0.0,
        _FORMULAS[config.formula],
        _LOOKBACKS[config.effective_lookback],
        config.window_size,
        config.buffer_size,
        config.min_match_length or 0,
        config.loop_window,
        config.gate_window if config.gate_high is not None else 0,
        config.gate_from or 0,
        (ctypes.c_int32 * len(ids))(*ids),
        len(ids),
    )


class NativePenalty:
    """A config that can be applied to one sequence after the other, by one thread at a time.

    Args:
        config: the settings. `include_prompt` has no effect: the caller passes the tokens that count.

    Raises:
        BackendUnavailableError: no compiler, or it failed, or the cache cannot be used or trusted.
    """

    def __init__(self, config: LZPenaltyConfig) -> None:
        self.config = config
        self._library = _library()
        settings = native_settings(config)
        size = self._library.lz_penalty_size(settings)
        self._memory = ctypes.create_string_buffer(max(size, 1) + 16)
        aligned = ctypes.addressof(self._memory) + -ctypes.addressof(self._memory) % 16
        self._context = ctypes.c_void_p()
        self._apply = self._library.lz_penalty_apply
        self._check(self._library.lz_penalty_init(aligned, size, settings, ctypes.byref(self._context)))

    @classmethod
    def load(cls, config: LZPenaltyConfig) -> NativePenalty | None:
        """Return a penalty, or `None` with a warning if the header cannot be compiled here."""
        try:
            return cls(config)
        except BackendUnavailableError as error:
            _LOGGER.warning("the penalty in C is not used: %s", error)
            return None

    def apply_(self, logits: np.ndarray, tokens: np.ndarray, vocab_size: int | None = None) -> None:
        """Penalise `logits` in place.

        Args:
            logits: float32 `[vocab]`, writable; may be a strided view.
            tokens: int32 `[n]`, contiguous: the context, oldest first.
            vocab_size: the alphabet, if the logits are padded beyond it.
        """
        # This one attribute contains all that is needed: `ctypes.data`, `flags` and `strides` take longer than the penalty.
        about = logits.__array_interface__
        (address, read_only), strides = about["data"], about["strides"] or _CONTIGUOUS
        if about["typestr"] != _FLOAT or logits.ndim != 1 or read_only or strides[0] < 4:
            raise LZPenaltyError(f"logits = {show(logits)}: must be float32, one-dimensional and writable.")
        given = tokens.__array_interface__
        if given["typestr"] != _INTEGER or tokens.ndim != 1 or given["strides"] is not None:
            raise LZPenaltyError(f"tokens = {show(tokens)}: must be int32, one-dimensional and contiguous.")
        width = len(logits)
        if vocab_size is None:
            vocab_size = width
        elif not 1 <= vocab_size <= width:
            raise LZPenaltyError(f"vocab_size = {vocab_size}: must be from 1 to {width}, the number of logits.")
        code = self._apply(self._context, address, strides[0], vocab_size, given["data"][0], len(tokens))
        if code:
            self._check(code)

    def _check(self, code: int) -> None:
        if code:
            raise LZPenaltyError(f"lz_penalty.h: {self._library.lz_penalty_error(code).decode()}.")


@lru_cache(maxsize=None)
def _library() -> Any:
    """Return the compiled header, loaded once per process."""
    library = load("library.c", include_dir())
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    settings = ctypes.POINTER(NativeSettings)
    library.lz_penalty_check.argtypes = [settings]
    library.lz_penalty_error.argtypes = [ctypes.c_int]
    library.lz_penalty_error.restype = ctypes.c_char_p
    library.lz_penalty_size.argtypes = [settings]
    library.lz_penalty_size.restype = size
    library.lz_penalty_init.argtypes = [pointer, size, settings, pointer]
    library.lz_penalty_apply.argtypes = [pointer, pointer, size, ctypes.c_int32, pointer, size]
    return library
