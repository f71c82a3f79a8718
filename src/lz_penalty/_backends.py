"""The backends: which of them can run here, and which one `auto` takes for which logits."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from functools import lru_cache
from typing import Any, cast

import numpy as np

from lz_penalty.errors import BackendUnavailableError, LZPenaltyError, show
from lz_penalty.kernels import Backend

__all__ = ["available_backends", "backend_for", "choose_backend", "dtype_of", "load_backend"]

_LOGGER = logging.getLogger("lz_penalty")
_MODULES = {"numpy": "numpy_cpu", "numba": "numba_cpu", "torch": "torch_any", "triton": "triton"}
BACKENDS = tuple(_MODULES)
_TRITON = (3, 4)  # the oldest version with the interface that the launches use


def available_backends() -> dict[str, str | None]:
    """Return every backend with the reason why it cannot run here, or `None` if it can.

    >>> available_backends()["numpy"] is None
    True
    """
    return {name: _reason(name) for name in BACKENDS}


def _reason(name: str) -> str | None:
    """Return why this backend cannot run here; `None` if it can. No other backend's library is imported."""
    if name == "triton":
        return _triton_reason()
    if name == "numpy" or _installed(name):
        return None
    return f"{name} is not installed: pip install 'lz-penalty[{name}]'"


def _triton_reason() -> str | None:
    if not (_installed("torch") and _installed("triton")):
        return "torch and triton are needed: pip install 'lz-penalty[triton]'"
    try:
        version: str = importlib.import_module("triton").__version__
        cuda: bool = importlib.import_module("torch").cuda.is_available()
    except Exception as error:  # a broken installation, or a library that finds no folder for temporary files
        return f"torch or triton cannot be imported ({type(error).__name__}: {error})"
    if tuple(map(int, version.split(".")[:2])) < _TRITON:
        return f"triton {version} is too old: pip install --upgrade 'lz-penalty[triton]'"
    if not cuda and not _interpreted():
        return "no CUDA device (TRITON_INTERPRET=1 runs it on the CPU, for tests)"
    return None


def choose_backend(logits: Any) -> str:
    """Return the backend that `auto` takes for these logits: the fastest one that can run on them."""
    return _choice("numpy" if isinstance(logits, np.ndarray) else logits.device.type, dtype_of(logits))


@lru_cache(maxsize=None)
def _choice(device: str, dtype: str) -> str:
    if device in ("numpy", "cpu") and dtype in ("float32", "float64") and _installed("numba"):
        name = "numba"
    elif device == "numpy":
        name = "numpy"
    elif device == "cuda" and not (reason := _reason("triton")):
        name = "triton"
    else:
        name = "torch"
        if device == "cuda":
            _LOGGER.warning("the LZ penalty takes longer than it could: %s", reason)
    _LOGGER.info("backend for %s logits on %s: %s", dtype, device, name)
    return name


@lru_cache(maxsize=None)
def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _interpreted() -> bool:
    """Return whether Triton was told to run kernels on the CPU."""
    triton = importlib.import_module("triton")
    return bool(triton.knobs.runtime.interpret)


@lru_cache(maxsize=None)
def load_backend(name: str) -> Backend:
    """Return the module of a backend; raise if it cannot run here."""
    if name not in _MODULES:
        raise LZPenaltyError(f"backend = {show(name)}: must be one of 'auto', {', '.join(map(repr, BACKENDS))}.")
    reason = _reason(name)
    if reason:
        raise BackendUnavailableError(f"backend = {name!r} cannot run here: {reason}.")
    return cast(Backend, importlib.import_module(f"lz_penalty.kernels.{_MODULES[name]}"))


def backend_for(name: str, logits: Any) -> Backend:
    """Return the backend of this name, or the fastest one for "auto"; raise unless it runs on these logits."""
    if name == "auto":
        name = choose_backend(logits)
    backend = load_backend(name)
    on_numpy = isinstance(logits, np.ndarray)
    on_cpu = on_numpy or logits.device.type == "cpu"
    if name in ("torch", "triton") and on_numpy:
        raise BackendUnavailableError(f"backend = {name!r} takes torch tensors; these are NumPy arrays.")
    if name in ("numpy", "numba") and not on_cpu:
        raise BackendUnavailableError(f"backend = {name!r} runs on the CPU; the logits are on {logits.device}.")
    if name == "triton" and not (logits.is_cuda or _interpreted()):
        raise BackendUnavailableError(f"backend = 'triton' runs on CUDA; the logits are on {logits.device}.")
    dtype = dtype_of(logits)
    if (name == "numba" and dtype not in ("float32", "float64")) or (name == "numpy" and dtype == "bfloat16"):
        raise BackendUnavailableError(f"backend = {name!r} has no {dtype}: use 'auto', or convert the logits.")
    return backend


def dtype_of(array: Any) -> str:
    """Return the name of an array's dtype, such as "float32", for NumPy and torch."""
    return _dtype_name(array.dtype)


@lru_cache(maxsize=None)  # NumPy takes two microseconds to make a name
def _dtype_name(dtype: Any) -> str:
    return dtype.name if isinstance(dtype, np.dtype) else str(dtype).removeprefix("torch.")
