"""The named criteria, each a function from a text to a verdict, and the dual verdict of search and judge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lz_penalty.detection.tandem import LOOP_COPIES, LOOP_LENGTH, find_repetition

__all__ = ["CRITERIA", "Limits", "Verdict", "dual"]


@dataclass(frozen=True)
class Limits:
    """When copies in a row count as a loop; the other criteria have limits of their own."""

    min_copies: float = LOOP_COPIES
    min_length: int = LOOP_LENGTH


@dataclass(frozen=True)
class Verdict:
    """Where a criterion sees a loop.

    Args:
        criterion: its name.
        start: the character at which it begins.
        length: characters it spans.
        copies: how often the unit is there.
        unit: what is repeated.
        wasted: characters of it after the first copy; `None` where copies need not stand side by side.
    """

    criterion: str
    start: int
    length: int
    copies: float
    unit: str
    wasted: int | None


def tandem(text: str, limits: Limits) -> Verdict | None:
    """Copies of one unit in a row."""
    found = find_repetition(text, min_copies=limits.min_copies, min_length=limits.min_length)
    if found is None:
        return None
    wasted = found.length - found.period
    return Verdict("tandem", found.start, found.length, found.copies, str(found.unit), wasted)


CRITERIA: dict[str, Callable[[str, Limits], Verdict | None]] = {"tandem": tandem}


def dual(exact: bool, judged: bool | None) -> bool | None:
    """Whether exact search and judge agree that there is a loop; `None` where that hangs on a judge without an answer.

    >>> dual(True, True), dual(True, False), dual(False, None), dual(True, None)
    (True, False, False, None)
    """
    return judged if exact else False
