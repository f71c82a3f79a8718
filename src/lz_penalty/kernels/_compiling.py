"""Compile functions with Numba, with its cache on disk if that can be used and trusted."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba

from lz_penalty._files import why_others_may_change

__all__ = ["compiled"]

_LOGGER = logging.getLogger("lz_penalty")
_TOLD: list[str] = []  # one warning per process is enough


def compiled(function: Any, **options: Any) -> Any:
    """Compile with `numba.njit`, without the interpreter's lock. If the cache fails, the function is compiled again.

    A container may have no folder for the cache, or a full disk. Numba alone would then raise an error, when the
    function is defined or when it is called for the first time.
    """
    reason = _no_home()
    if reason is None:
        try:
            made = numba.njit(cache=True, nogil=True, **options)(function)
            cache = getattr(made, "_cache", None)
            if cache is None:  # with NUMBA_DISABLE_JIT=1, `made` is the function itself
                return made
            reason = _untrusted(Path(cache.cache_path), Path(function.__code__.co_filename))
        except (RuntimeError, OSError) as error:
            reason = str(error)
    if reason is not None:
        _tell(reason)
        return numba.njit(nogil=True, **options)(function)
    cache.load_overload = _forgiving(cache, cache.load_overload)
    cache.save_overload = _forgiving(cache, cache.save_overload)
    return made


def _no_home() -> str | None:
    """Return why there is no folder for the cache: without a home, Numba would use `~` in the working directory."""
    known = os.environ.get("NUMBA_CACHE_DIR") or os.path.isabs(os.path.expanduser("~"))
    return None if known else "this user has no home"


def _untrusted(cache: Path, source: Path) -> str | None:
    """Return why others could have put code into the cache; next to the source, it is as safe as the source."""
    if cache.parent == source.parent or os.name != "posix":
        return None
    return why_others_may_change(cache.resolve())


def _forgiving(cache: Any, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method of a cache such that an error in it ends the use of the cache, and the function is compiled."""

    def call(*arguments: Any) -> Any:
        try:
            return method(*arguments)
        except Exception as error:  # a full disk, or a broken file in the cache
            cache.disable()
            _tell(f"{type(error).__name__}: {error}")
            return None

    return call


def _tell(reason: str) -> None:
    if _TOLD:
        return
    _TOLD.append(reason)
    _LOGGER.warning(
        "Numba's cache cannot be used (%s): this process compiles its functions again. Set NUMBA_CACHE_DIR to a folder of "
        "your own that can be written.",
        " ".join(reason.split()),
    )
