"""Find tandem repeats: adjacent copies of one unit (the criterion `tandem`).

Names, phrases and table rows occur again in ordinary text; adjacent copies are typical of loops. `_runs` contains the
algorithm. `lz_penalty.loops` looks at the end of a sequence only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lz_penalty._checks import boolean, integer, real
from lz_penalty.errors import LZPenaltyError, show

__all__ = [
    "Items",
    "Repetition",
    "as_array",
    "endless_length",
    "find_endless",
    "find_repetition",
    "find_repetitions",
    "is_degenerate",
    "is_endless",
    "is_loop",
    "make_repetition",
]

MAX_ITEMS = 2**31 - 1
DEGENERATE_COPIES = 20  # the paper's threshold
LOOP_COPIES = 5
LOOP_LENGTH = 60
ENDLESS_TOKENS = 80  # docs/detection.md explains this and the next value
ENDLESS_CHARACTERS = 300
SHORT_UNIT_CHARACTERS = 120  # is enough for 20 copies of a unit with a letter
STOP_LENGTH = 480  # items of a run that stops a stream; long, because a stopped stream cannot recover

Items = Sequence[int] | npt.NDArray[np.integer[Any]] | str | bytes


@dataclass(frozen=True)
class Repetition:
    """A stretch of adjacent copies of one unit.

    Args:
        start: where the first copy begins.
        period: length of the unit. It is the smallest period, so the unit is not a repetition itself.
        length: items of the whole stretch; the last copy may be incomplete.
        copies: length / period, not rounded down.
        coverage: length / length of the sequence; 0 to 1.
        unit: the first copy: a `str` or `bytes` if one was searched, else a tuple of ints.
    """

    start: int
    period: int
    length: int
    copies: float
    coverage: float
    unit: str | bytes | tuple[int, ...]


def find_repetition(
    sequence: Items, *, min_copies: float = LOOP_COPIES, min_length: int = LOOP_LENGTH, at_end: bool = False
) -> Repetition | None:
    """Return the longest stretch of `find_repetitions`, or `None`; ties go to the earliest. Takes the same arguments.

    >>> find_repetition([9, 1, 2, 3, 1, 2, 3, 1, 2, 7], min_copies=2, min_length=6)
    Repetition(start=1, period=3, length=8, copies=2.6666666666666665, coverage=0.8, unit=(1, 2, 3))
    >>> find_repetition("see ------------", min_length=10).unit
    '-'
    >>> find_repetition("one two three") is None
    True
    """
    found = _runs(sequence, min_copies, min_length, at_end)
    if not found:
        return None
    return make_repetition(sequence, *min(found, key=lambda run: (run[0] - run[2], run[0])))


def find_repetitions(
    sequence: Items, *, min_copies: float = LOOP_COPIES, min_length: int = LOOP_LENGTH, at_end: bool = False
) -> list[Repetition]:
    """Return all maximal stretches of adjacent copies of one unit, in the order of their starts.

    The definition:

        for period in 1 .. n:
            for every maximal stretch with sequence[i] == sequence[i - period], the first copy included:
                if length / period >= min_copies and length >= min_length and it has no smaller period:
                    return it

    Two stretches may overlap by less than the sum of their periods. Takes O(n log n) steps for any input. Without Numba
    the result is the same, but the search is about a hundred times slower.

    Args:
        sequence: token ids (any one-dimensional sequence of ints, an array or tensor), a `str`, compared by code points,
            or `bytes`.
        min_copies: a real number, at least 2; an incomplete last copy counts as a fraction. Below 3 the search takes
            several times as long.
        min_length: the least number of items in the stretch.
        at_end: whether the stretch must reach the end of the sequence.

    >>> [(r.start, r.length, r.unit) for r in find_repetitions("-----+-----+-----", min_copies=2, min_length=5)]
    [(0, 17, '-----+'), (0, 5, '-'), (6, 5, '-'), (12, 5, '-')]
    """
    found = _runs(sequence, min_copies, min_length, at_end)
    return [make_repetition(sequence, *run) for run in sorted(found, key=lambda run: (run[0], -run[2]))]


def _runs(sequence: Items, min_copies: float, min_length: int, at_end: bool) -> list[tuple[int, int, int]]:
    min_copies = real(2, 1_000_000)("min_copies", min_copies)
    min_length = integer(1, MAX_ITEMS)("min_length", min_length)
    at_end = boolean("at_end", at_end)
    items = as_array(sequence)
    if len(items) < max(2, min_length):
        return []
    from lz_penalty.detection._runs import find_runs  # imports Numba

    found = find_runs(items, min_copies, min_length)
    return [run for run in found if run[2] == len(items)] if at_end else found


def make_repetition(sequence: Any, start: int, period: int, end: int) -> Repetition:
    """Return the run of this period from start to end."""
    unit = sequence[start : start + period]
    return Repetition(
        start=start,
        period=period,
        length=end - start,
        copies=(end - start) / period,
        coverage=(end - start) / len(sequence),
        unit=unit if isinstance(unit, (str, bytes)) else tuple(int(item) for item in unit),
    )


def is_degenerate(sequence: Items) -> bool:
    """Return whether some unit occurs at least 20 times in a row: the paper's threshold, meant for token ids.

    A unit may have one item: a line of twenty dashes is degenerate if each dash is an item.

    >>> is_degenerate([3, 1] * 20), is_degenerate([3, 1] * 19)
    (True, False)
    """
    return find_repetition(sequence, min_copies=DEGENERATE_COPIES, min_length=DEGENERATE_COPIES) is not None


def is_loop(sequence: Items) -> bool:
    """Return whether some unit occurs at least 5 times in a row and fills at least 60 items; meant for token ids.

    >>> is_loop(list(range(12)) * 5), is_loop([3, 1] * 5)
    (True, False)
    """
    return find_repetition(sequence) is not None


def is_endless(sequence: Items) -> bool:
    """Return whether the sequence ends inside a loop: what `find_endless` finds.

    This is the verdict `tandem`. A table, a matrix or a list may repeat as much, but it ends; a loop runs until the limit.
    With these thresholds no legitimate text of the labelled set is flagged (docs/detection.md).

    >>> is_endless("[" + "0, " * 200), is_endless("[" + "0, " * 200 + "0]")
    (True, False)
    """
    return find_endless(sequence) is not None


def find_endless(sequence: Items) -> Repetition | None:
    """Return the copies that the sequence ends with, or `None`: 5 copies or more that fill 80 token ids or 300 characters.

    For a unit with a letter, 20 copies that fill 120 characters are enough. A line of dashes needs 300.

    >>> find_endless("Non! " * 25).copies, find_endless("Non! " * 15)
    (25.0, None)
    """
    least = endless_length(sequence)
    short = min(least, SHORT_UNIT_CHARACTERS)
    if isinstance(sequence, (str, bytes)) and sequence.rfind(sequence[-64:], 0, -1) < 0:  # type: ignore[arg-type]
        return None  # the last 96 characters of 5 copies occur before: a quick look
    found = find_repetitions(sequence, min_copies=LOOP_COPIES, min_length=short, at_end=True)
    return next((one for one in found if one.length >= least or _is_short_unit(one)), None)


def _is_short_unit(found: Repetition) -> bool:
    """Return whether these are many copies of a unit that has a letter."""
    unit = found.unit.decode("latin-1") if isinstance(found.unit, bytes) else found.unit
    return found.copies >= DEGENERATE_COPIES and isinstance(unit, str) and any(map(str.isalpha, unit))


def endless_length(sequence: Items) -> int:
    """Return the least number of items of a loop without an end: token ids, or characters or bytes."""
    return ENDLESS_CHARACTERS if isinstance(sequence, (str, bytes)) else ENDLESS_TOKENS


def as_array(sequence: Items) -> npt.NDArray[Any]:
    """Return one number per item: code points of a `str`, bytes, or the ids themselves."""
    if isinstance(sequence, str):
        if sequence.isascii():
            return np.frombuffer(sequence.encode("ascii"), dtype=np.uint8)
        return np.frombuffer(sequence.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    if isinstance(sequence, bytes):
        return np.frombuffer(sequence, dtype=np.uint8)
    try:
        items = np.asarray(sequence)
    except (TypeError, ValueError, RuntimeError):  # lists of unequal lists; tensors on another device
        items = np.empty(0, dtype=object)
    else:
        if items.shape == (0,):
            return items
    if items.ndim != 1 or items.dtype.kind not in "iu":
        raise LZPenaltyError(
            f"sequence = {show(sequence)}: must be a one-dimensional sequence of ints, a str or bytes."
        )
    return items
