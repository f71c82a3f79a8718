"""The errors of the library. Every message says what was given, what is allowed and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

__all__ = ["BackendUnavailableError", "LZPenaltyError"]

_MAX_NAME = 64  # characters of a name that are compared with the known names
_MAX_LEVELS = 3  # levels of nested values that are shown
_MAX_BITS = 1_024  # bits of the largest integer that is shown


class LZPenaltyError(ValueError):
    """Invalid settings or input. No state was changed."""


class BackendUnavailableError(LZPenaltyError):
    """A backend that was requested by name cannot run here."""


def show(value: Any, limit: int = 60) -> str:
    """Return `repr(value)`, cut to one line of a log. The time does not depend on the size of the value.

    >>> show({"lz_preset": ["guarded", 1.5]}), show([[[[1]]]]), show([1] * 10**6, limit=12)
    ("{'lz_preset': ['guarded', 1.5]}", '[[[[...]]]]', '[1, 1, 1,...')
    """
    text = _repr(value, limit, _MAX_LEVELS)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def did_you_mean(name: Any, known: Iterable[str]) -> str:
    """Return the question whether the most similar known name was meant; empty if none is similar.

    >>> did_you_mean("lz_windowsize", ["lz_penalty", "lz_window_size"]), did_you_mean("x", ["lz_penalty"])
    (' Did you mean lz_window_size?', '')
    """
    begin = name[:_MAX_NAME].lower() if isinstance(name, str) else show(name)
    near = difflib.get_close_matches(begin, known, n=1)
    return f" Did you mean {near[0]}?" if near else ""


def unknown_field(key: Any, value: Any, known: Iterable[str]) -> LZPenaltyError:
    """Return the error for a field that does not exist.

    >>> str(unknown_field("lz_presett", "paper", ["lz_penalty", "lz_preset"]))
    "lz_presett = 'paper': unknown field. Did you mean lz_preset? Known: lz_penalty, lz_preset."
    """
    known = list(known)
    return LZPenaltyError(
        f"{shown_name(key)} = {show(value)}: unknown field.{did_you_mean(key, known)} Known: {', '.join(known)}."
    )


def shown_name(key: Any) -> str:
    """Return the name of a field for a message: cut as by `show`, without quotes."""
    return show(key)[1:-1] if isinstance(key, str) else show(key)


def bad_value(field: str, value: Any, allowed: str, hint: str = "") -> LZPenaltyError:
    """Return the error for a field with an invalid value.

    >>> str(bad_value("window_size", 0, "an integer from 1 to 65536"))
    'window_size = 0: must be an integer from 1 to 65536.'
    """
    return LZPenaltyError(f"{field} = {show(value)}: must be {allowed}.{' ' + hint if hint else ''}")


def _repr(value: Any, limit: int, levels: int) -> str:
    """Return at least the first `limit` characters of `repr(value)`, without values nested deeper than `levels`."""
    if isinstance(value, (str, bytes)):
        return repr(value[:limit])  # if it was cut, its quotes make it longer than the limit
    if isinstance(value, (list, tuple, dict, set, frozenset)):
        return _repr_items(value, limit, levels)
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        return f"a very large {type(value).__name__}"
    try:
        return repr(value)
    except Exception:  # the class of the value may raise anything
        return f"a value of type {type(value).__name__}"


def _repr_items(value: Any, limit: int, levels: int) -> str:
    """Return the text of a list, tuple, dict or set; reads only as many items as fit into `limit` characters."""
    opened, closed = "[]" if isinstance(value, list) else "()" if isinstance(value, tuple) else "{}"
    if value and not levels:
        return f"{opened}...{closed}"
    parts, length = list[str](), 0
    for item in value.items() if isinstance(value, dict) else value:
        pair = item if isinstance(value, dict) else (item,)
        parts.append(": ".join(_repr(one, limit, levels - 1) for one in pair))
        length += len(parts[-1]) + 2
        if length > limit:
            break
    return f"{opened}{', '.join(parts)}{',' if isinstance(value, tuple) and len(value) == 1 else ''}{closed}"
