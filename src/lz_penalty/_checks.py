"""Checks of single values. Each returns the value in its plain type, or raises with name, value and allowed range."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lz_penalty.errors import LZPenaltyError, bad_value

__all__ = ["MAX_TOKEN_ID", "Check", "boolean", "choice", "flag", "integer", "real", "token_ids"]

MAX_TOKEN_ID = 2**31 - 1
MAX_TOKEN_IDS = 1_024  # in a request
MAX_EXEMPT = 2_047  # in a settings row, including the special tokens that engines add

Check = Callable[[str, Any], Any]


def _is_number(value: Any, kind: type) -> bool:
    # isinstance() with an abstract class takes ten times as long, and a request may have a thousand ids.
    return type(value) is int or (isinstance(value, kind) and not isinstance(value, bool))


def real(low: float, high: float, optional: bool = False) -> Check:
    """Return a check for a finite number from `low` to `high`, or `None` if it is optional."""

    def check(name: str, value: Any) -> float | None:
        if optional and value is None:
            return None
        if not _is_number(value, numbers.Real) or not low <= value <= high or not math.isfinite(value):
            raise bad_value(name, value, f"a finite number from {low:g} to {high:g}{' or None' if optional else ''}")
        return float(value)

    return check


def integer(low: int, high: int, optional: bool = False) -> Check:
    """Return a check for an integer from `low` to `high`, or `None` if it is optional."""

    def check(name: str, value: Any) -> int | None:
        if optional and value is None:
            return None
        if not _is_number(value, numbers.Integral) or not low <= value <= high:
            raise bad_value(name, value, f"an integer from {low} to {high}{' or None' if optional else ''}")
        return int(value)

    return check


def choice(*allowed: str | None) -> Check:
    """Return a check for one of these words."""

    def check(name: str, value: Any) -> Any:
        if not (value is None or isinstance(value, str)) or value not in allowed:
            raise bad_value(name, value, "one of " + ", ".join(map(repr, allowed)))
        return value

    return check


def boolean(name: str, value: Any) -> bool:
    """Check that a value is true or false, and not a number."""
    if not isinstance(value, bool):
        raise bad_value(name, value, "true or false")
    return value


def flag(name: str, value: Any) -> bool:
    """Check that a request's value is true, false, 0 or 1: some transports can only send numbers."""
    return boolean(name, bool(value) if isinstance(value, int) and value in (0, 1) else value)


def token_ids(name: str, value: Any, most: int = MAX_TOKEN_IDS) -> tuple[int, ...]:
    """Check token ids and return them in ascending order without duplicates."""
    allowed = f"at most {most} integers from 0 to {MAX_TOKEN_ID}"
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise bad_value(name, value, allowed)
    try:
        items = iter(value)
    except TypeError:  # an array without dimensions
        raise bad_value(name, value, allowed) from None
    ids = []
    for item in items:
        if not _is_number(item, numbers.Integral) or not 0 <= item <= MAX_TOKEN_ID:
            raise bad_value(name, item, allowed)
        ids.append(int(item))
        if len(ids) > most:
            raise LZPenaltyError(f"{name}: more than {most} ids given; must be {allowed}.")
    return tuple(sorted(set(ids)))
