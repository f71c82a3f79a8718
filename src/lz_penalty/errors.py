"""Errors. Every message says what was given, what is allowed and what to do."""

from __future__ import annotations

from typing import Any

__all__ = ["BackendUnavailableError", "LZPenaltyError"]


class LZPenaltyError(ValueError):
    """Bad settings or bad input; nothing was changed."""


class BackendUnavailableError(LZPenaltyError):
    """A backend was asked for by name and cannot run here."""


def show(value: Any, limit: int = 60) -> str:
    """`repr(value)`, cut to a length that fits into one line of a log."""
    try:
        text = repr(value)
    except ValueError:  # an integer with more digits than Python prints
        text = f"a very large {type(value).__name__}"
    return text if len(text) <= limit else text[: limit - 3] + "..."


def bad_value(field: str, value: Any, allowed: str, hint: str = "") -> LZPenaltyError:
    """The error for one bad field.

    >>> str(bad_value("window_size", 0, "an integer from 1 to 65536"))
    'window_size = 0: must be an integer from 1 to 65536.'
    """
    return LZPenaltyError(f"{field} = {show(value)}: must be {allowed}.{' ' + hint if hint else ''}")
