"""Errors. Every message says what was given, what is allowed and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

__all__ = ["BackendUnavailableError", "LZPenaltyError"]

_MAX_NAME = 64  # characters of a name that are compared with known ones
_MAX_LEVELS = 3  # of nested values that are shown
_MAX_BITS = 1_024  # of an integer that is shown


class LZPenaltyError(ValueError):
    """Bad settings or bad input; nothing was changed."""


class BackendUnavailableError(LZPenaltyError):
    """A backend was asked for by name and cannot run here."""


def show(value: Any, limit: int = 60) -> str:
    """`repr(value)`, cut to a length that fits into one line of a log, in a time that does not depend on the value.

    >>> show({"lz_preset": ["guarded", 1.5]}), show([[[[1]]]]), show([1] * 10**6, limit=12)
    ("{'lz_preset': ['guarded', 1.5]}", '[[[[...]]]]', '[1, 1, 1,...')
    """
    text = _shown(value, limit, _MAX_LEVELS)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def closest(name: Any, known: Iterable[str]) -> str:
    """The known name that is most like the given one, of which only the beginning is compared.

    >>> closest("lz_windowsize", ["lz_penalty", "lz_window_size"])
    'lz_window_size'
    """
    begin = name[:_MAX_NAME] if isinstance(name, str) else show(name)
    return difflib.get_close_matches(begin, known, n=1, cutoff=0.0)[0]


def unknown_field(key: Any, value: Any, known: Iterable[str]) -> LZPenaltyError:
    """The error for a field that does not exist.

    >>> str(unknown_field("lz_presett", "paper", ["lz_penalty", "lz_preset"]))
    "lz_presett = 'paper': unknown field. Did you mean lz_preset? Known: lz_penalty, lz_preset."
    """
    known = list(known)
    return LZPenaltyError(
        f"{shown_name(key)} = {show(value)}: unknown field. Did you mean {closest(key, known)}? Known: {', '.join(known)}."
    )


def shown_name(key: Any) -> str:
    """The name of a field for a message: bounded as by `show`, without quotes."""
    return show(key)[1:-1] if isinstance(key, str) else show(key)


def bad_value(field: str, value: Any, allowed: str, hint: str = "") -> LZPenaltyError:
    """The error for one bad field.

    >>> str(bad_value("window_size", 0, "an integer from 1 to 65536"))
    'window_size = 0: must be an integer from 1 to 65536.'
    """
    return LZPenaltyError(f"{field} = {show(value)}: must be {allowed}.{' ' + hint if hint else ''}")


def _shown(value: Any, limit: int, levels: int) -> str:
    """`repr(value)`, or at least its first `limit` characters; values below so many levels are left out."""
    if isinstance(value, (str, bytes)):
        return repr(value[:limit])  # the quotes make it longer than the limit where something is missing
    if isinstance(value, (list, tuple, dict, set, frozenset)):
        return _shown_items(value, limit, levels)
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        return f"a very large {type(value).__name__}"
    try:
        return repr(value)
    except Exception:  # anything: the class is not ours
        return f"a value of type {type(value).__name__}"


def _shown_items(value: Any, limit: int, levels: int) -> str:
    """A list, tuple, dict or set, of which only as many items are read as fit into `limit` characters."""
    opened, closed = "[]" if isinstance(value, list) else "()" if isinstance(value, tuple) else "{}"
    if value and not levels:
        return f"{opened}...{closed}"
    parts, length = list[str](), 0
    for item in value.items() if isinstance(value, dict) else value:
        pair = item if isinstance(value, dict) else (item,)
        parts.append(": ".join(_shown(one, limit, levels - 1) for one in pair))
        length += len(parts[-1]) + 2
        if length > limit:
            break
    return f"{opened}{', '.join(parts)}{',' if isinstance(value, tuple) and len(value) == 1 else ''}{closed}"
