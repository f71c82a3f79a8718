"""Find drift: one unit repeats, then another one repeats, and so on.

Each run alone may be too short to be a loop; together they fill a long stretch. A frequency penalty causes such text, and
so does any penalty that stops a loop but does not lead the model out of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from itertools import accumulate
from typing import Any

from lz_penalty._checks import boolean, integer, real
from lz_penalty.detection._tandem import MAX_ITEMS, Items, Repetition, endless_length, find_repetitions

__all__ = ["Drift", "find_drift"]


@dataclass(frozen=True)
class Drift:
    """A stretch filled by runs of several units, one after another.

    Args:
        start: where the first run begins.
        end: where the stretch ends, exclusive.
        share: the share of the stretch that the runs fill; 0 to 1.
        coverage: (end - start) / length of the sequence; 0 to 1.
        units: the number of different units; rotations of a unit count once.
        runs: the runs by start, without those inside another run.
    """

    start: int
    end: int
    share: float
    coverage: float
    units: int
    runs: tuple[Repetition, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return asdict(self)


def find_drift(
    sequence: Items,
    *,
    min_copies: float = 3,
    min_run: int | None = None,
    min_units: int = 3,
    min_share: float = 0.6,
    min_length: int | None = None,
    at_end: bool = False,
) -> Drift | None:
    """Return the longest stretch that is filled by runs of several units, one after another, or `None`.

    The definition:

        runs = all maximal runs with min_copies copies and min_run items, as `find_repetitions` returns them
        for begin in starts of runs, end in ends of runs, begin < end:
            filled = items of [begin, end) that belong to some run
            if filled / (end - begin) >= min_share and end - begin >= min_length:
                found = the longer of found and (begin, end), or the earlier if both are equally long
        None if the runs inside found, without those inside another run, have fewer than min_units different units

    Args:
        sequence: token ids, a `str` or `bytes`.
        min_copies: the least number of adjacent copies in a run, at least 2; far fewer than a loop needs.
        min_run: the least number of items in a run; by default 12 token ids, or 24 characters or bytes.
        min_units: the least number of different units; rotations of a unit count once.
        min_share: the least share of the stretch that the runs fill, 0.01 to 1; read as a decimal number.
        min_length: the least number of items; by default 80 token ids, or 300 characters or bytes.
        at_end: whether the stretch must reach the end of the sequence, even if the last run ends before it.

    >>> text = "Look! " * 15 + "\\nThis! " * 15 + "\\nwell\\n" + "Third! " * 17
    >>> found = find_drift(text)
    >>> found.units, [round(run.copies) for run in found.runs]
    (3, [15, 15, 17])
    >>> find_drift("Look! " * 60) is None
    True
    """
    text = isinstance(sequence, (str, bytes))
    min_run = integer(1, MAX_ITEMS)("min_run", (24 if text else 12) if min_run is None else min_run)
    min_length = integer(1, MAX_ITEMS)("min_length", endless_length(sequence) if min_length is None else min_length)
    min_units = integer(1, MAX_ITEMS)("min_units", min_units)
    share = Fraction(str(real(0.01, 1)("min_share", min_share)))
    boolean("at_end", at_end)
    runs = _outermost(find_repetitions(sequence, min_copies=min_copies, min_length=min_run))
    n = len(sequence)
    found = _longest_dense(_merged(runs), share, n if at_end else None)
    if found is None or found[1] - found[0] < min_length:
        return None
    begin, end, filled = found
    inside = tuple(run for run in runs if begin <= run.start and run.start + run.length <= end)
    units = len({_least_rotation(run.unit) for run in inside})
    if units < min_units:
        return None
    return Drift(begin, end, filled / (end - begin), (end - begin) / n, units, inside)


def _outermost(runs: Sequence[Repetition]) -> list[Repetition]:
    """Return the runs that are not inside another run, by start."""
    kept: list[Repetition] = []
    for run in sorted(runs, key=lambda run: (run.start, -run.length, run.period)):
        if not kept or run.start + run.length > kept[-1].start + kept[-1].length:
            kept.append(run)
    return kept


def _merged(runs: Sequence[Repetition]) -> list[tuple[int, int]]:
    """Return the union of the runs as disjoint stretches, in order."""
    merged: list[tuple[int, int]] = []
    for run in runs:
        begin, end = run.start, run.start + run.length
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def _longest_dense(
    stretches: Sequence[tuple[int, int]], share: Fraction, at: int | None
) -> tuple[int, int, int] | None:
    """Return begin, end and filled items of the longest interval whose filled share is at least `share`.

    Takes time linear in the stretches. With balance(i) = filled before i - share * i, scaled to integers, an interval is
    good if balance(end) >= balance(begin). Only beginnings with a smaller balance than all earlier ones can be best.
    Ends are tried from right to left, so each beginning meets its last good end first.
    """
    filled = [0, *accumulate(end - begin for begin, end in stretches)]
    parts, whole = share.numerator, share.denominator
    balances = [whole * filled[i] - parts * begin for i, (begin, _) in enumerate(stretches)]
    ends = [(at, filled[-1], len(stretches))] if at is not None else [
        (end, filled[i + 1], i + 1) for i, (_, end) in enumerate(stretches)
    ]  # fmt: skip
    beginnings: list[int] = []
    for i, balance in enumerate(balances):
        if not beginnings or balance < balances[beginnings[-1]]:
            beginnings.append(i)
    best: tuple[int, int, int] | None = None
    for end, before, count in reversed(ends):
        while beginnings and whole * before - parts * end >= balances[beginnings[-1]]:
            i = beginnings.pop()
            begin = stretches[i][0]
            if i < count and (best is None or end - begin >= best[1] - best[0]):
                best = (begin, end, before - filled[i])
    return best


def _least_rotation(unit: str | bytes | tuple[int, ...]) -> tuple[Any, ...]:
    """Return the rotation that sorts first (Booth's algorithm), so that rotations of one unit compare equal."""
    items: tuple[Any, ...] = tuple(unit)
    n = len(items)
    i, j, same = 0, 1, 0
    while i < n and j < n and same < n:
        left, right = items[(i + same) % n], items[(j + same) % n]
        if left == right:
            same += 1
            continue
        if left > right:
            i += same + 1
        else:
            j += same + 1
        if i == j:
            j += 1
        same = 0
    first = min(i, j)
    return items[first:] + items[:first]
