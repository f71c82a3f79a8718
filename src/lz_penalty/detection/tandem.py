"""The longest tandem repeat of a sequence: copies of one unit that stand side by side.

That the end of a text occurred before says little: names, phrases and table rows do. Copies without anything between
them are what a loop looks like. `lz_penalty.loops` answers the same question for the end of a sequence only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lz_penalty.checks import integer, real
from lz_penalty.errors import LZPenaltyError, show

__all__ = ["Repetition", "find_repetition", "is_degenerate", "is_loop"]

DEGENERATE_COPIES = 20  # the paper's threshold
LOOP_COPIES = 5
LOOP_LENGTH = 60

Items = Sequence[int] | npt.NDArray[np.integer[Any]] | str | bytes


@dataclass(frozen=True)
class Repetition:
    """A stretch of adjacent copies of one unit.

    Args:
        start: where its first copy begins.
        period: length of the unit; the smallest period of the stretch, so that the unit is not a repetition itself.
        length: items of the whole stretch; the last copy may be cut short.
        copies: length / period, not floored.
        coverage: length / length of the sequence; 0 to 1.
        unit: the first copy: a `str` or `bytes` for those, a tuple of ints for token ids.
    """

    start: int
    period: int
    length: int
    copies: float
    coverage: float
    unit: str | bytes | tuple[int, ...]


def find_repetition(
    sequence: Items, *, min_copies: float = LOOP_COPIES, min_length: int = LOOP_LENGTH
) -> Repetition | None:
    """The longest stretch of adjacent copies of one unit; ties go to the earliest, with its smallest period.

    The definition:

        for period in 1 .. n:                     # ascending: a multiple of the unit finds the same stretch later
            for start in 0 .. n - period:
                length = period
                while start + length < n and sequence[start + length] == sequence[start + length - period]:
                    length += 1
                if length / period >= min_copies and length >= min_length:
                    found = longer, or as long and earlier, of found and (start, period, length)

    Args:
        sequence: token ids (any one-dimensional sequence of ints, a NumPy array), a `str` or `bytes`.
        min_copies: a real number, at least 2; the last copy counts by the part of it that is there.
        min_length: items that the stretch must have in all.

    Returns:
        `None` where no stretch has that many copies and items.

    >>> find_repetition([9, 1, 2, 3, 1, 2, 3, 1, 2, 7], min_copies=2, min_length=6)
    Repetition(start=1, period=3, length=8, copies=2.6666666666666665, coverage=0.8, unit=(1, 2, 3))
    >>> find_repetition("see ------------", min_length=10).unit
    '-'
    >>> find_repetition("one two three") is None
    True
    """
    min_copies = real(2, 1_000_000)("min_copies", min_copies)
    min_length = integer(1, 2**31 - 1)("min_length", min_length)
    items = _as_array(sequence)
    n = len(items)
    best_start, best_period, best_length = n, 0, 0
    for period in range(1, int(n / min_copies) + 1):
        # A longer period must at least tie: most periods are ruled out by counting their matches alone.
        least = max(min_length, best_length, math.floor(min_copies * period))
        if least > n or best_length == n:
            break
        same = items[period:] == items[:-period]
        if np.count_nonzero(same) < least - period:
            continue
        start, run = _longest_run(same)
        length = period + run
        if length < min_length or length / period < min_copies:
            continue
        if length > best_length or (length == best_length and start < best_start):
            best_start, best_period, best_length = start, period, length
    if not best_length:
        return None
    unit = sequence[best_start : best_start + best_period]
    return Repetition(
        start=best_start,
        period=best_period,
        length=best_length,
        copies=best_length / best_period,
        coverage=best_length / n,
        unit=unit if isinstance(unit, (str, bytes)) else tuple(int(item) for item in unit),
    )


def is_degenerate(sequence: Items) -> bool:
    """Whether some unit stands there 20 times or more in a row: the paper's threshold, meant for token ids.

    A unit of one item counts: a rule of twenty dashes is degenerate, if each dash is an item.

    >>> is_degenerate([3, 1] * 20), is_degenerate([3, 1] * 19)
    (True, False)
    """
    return find_repetition(sequence, min_copies=DEGENERATE_COPIES, min_length=DEGENERATE_COPIES) is not None


def is_loop(sequence: Items) -> bool:
    """Whether some unit stands there 5 times or more in a row and fills 60 items or more, meant for token ids.

    >>> is_loop(list(range(12)) * 5), is_loop([3, 1] * 5)
    (True, False)
    """
    return find_repetition(sequence, min_copies=LOOP_COPIES, min_length=LOOP_LENGTH) is not None


def _longest_run(same: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """Where the first of the longest runs of True begins, and its length."""
    edges = np.concatenate(([-1], np.flatnonzero(~same), [len(same)]))
    runs = np.diff(edges) - 1
    first = int(np.argmax(runs))
    return int(edges[first]) + 1, int(runs[first])


def _as_array(sequence: Items) -> npt.NDArray[Any]:
    """One number per item: code points of a `str`, bytes, or the ids themselves."""
    if isinstance(sequence, str):
        return np.frombuffer(sequence.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    if isinstance(sequence, bytes):
        return np.frombuffer(sequence, dtype=np.uint8)
    try:
        items = np.asarray(sequence)
    except (TypeError, ValueError, RuntimeError):  # ragged lists; tensors on another device
        items = np.empty(0, dtype=object)
    else:
        if items.shape == (0,):
            return items
    if items.ndim != 1 or items.dtype.kind not in "iu":
        raise LZPenaltyError(
            f"sequence = {show(sequence)}: must be a one-dimensional sequence of ints, a str or bytes."
        )
    return items
