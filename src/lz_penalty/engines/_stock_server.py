"""What `serve-llama` and `serve-mlx` share: check that another program's server still calls what they replace in it."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from lz_penalty.errors import BackendUnavailableError

__all__ = ["check_calls"]


def check_calls(server: Any, calls: Mapping[str, tuple[str, ...]], program: str, version: str, known: str) -> None:
    """Raise unless functions of a server call what we replace, so that no server starts without the penalty.

    Args:
        server: the module.
        calls: by the dotted path of a function in the module, the dotted paths of the functions that it must call.
        program: the name of the distribution.
        version: its installed version.
        known: the version whose server is known.
    """
    missing = [
        f"{called} in {path}"
        for path, names in calls.items()
        for called in names
        if _get(server, called) is None or called.rpartition(".")[2] not in _names_in(_get(server, path))
    ]
    if missing:
        raise BackendUnavailableError(
            f"{program} {version} has another server than {known}, and the penalty cannot be added to it (not found: "
            f"{', '.join(missing)}). Install {program} {known}."
        )


def _get(server: Any, path: str) -> Any:
    try:
        return attrgetter(path)(server)
    except AttributeError:
        return None


def _names_in(function: Any) -> tuple[str, ...]:
    """Return the names of functions, methods and attributes in a function's code."""
    code = getattr(function, "__code__", None)
    return code.co_names if code is not None else ()
