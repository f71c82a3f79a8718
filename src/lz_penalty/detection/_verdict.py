"""The named criteria, which turn a text into a verdict, and the dual verdict of search and judge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from lz_penalty.detection._drift import find_drift
from lz_penalty.detection._structure import find_block, find_structure
from lz_penalty.detection._substrings import FIRST_LOOK, MIN_COUNT, repeated_gram
from lz_penalty.detection._tandem import (
    ENDLESS_CHARACTERS,
    LOOP_COPIES,
    Repetition,
    as_array,
    find_endless,
    find_repetition,
)
from lz_penalty.detection._tolerant import NearCopies, find_counter, find_edited

__all__ = ["CAPPED", "CRITERIA", "FINISHED", "Limits", "Verdict", "dual"]

# The criteria that `detect` uses by default: for texts that ended by themselves, and for texts that a limit cut off.
FINISHED = ("tandem",)
CAPPED = ("tandem", "block", "structure")


@dataclass(frozen=True)
class Limits:
    """When repetition counts as a loop. docs/detection.md gives the error rates of the defaults.

    Args:
        min_copies: adjacent copies that `tandem` needs, 5 by default; other criteria have their own limits.
        min_length: characters that `tandem` needs, 300 by default. If neither is given, 120 are enough for 20 copies.
        at_end: whether the copies of `tandem`, `counter` and `edited` must reach the end of the text.
    """

    min_copies: float | None = None
    min_length: int | None = None
    at_end: bool = True


@dataclass(frozen=True)
class Verdict:
    """A loop that a criterion found.

    Args:
        criterion: the name of the criterion.
        start: the position of the loop's first character.
        length: the number of characters of the loop.
        copies: how often the unit occurs.
        unit: the text that is repeated.
        wasted: characters after the first copy; `None` if the copies need not be adjacent.
        skeleton: what all copies have in common, with `w` for words and `#` for a number; `structure` alone gives it.
    """

    criterion: str
    start: int
    length: int
    copies: float
    unit: str
    wasted: int | None
    skeleton: str | None = None


def tandem(text: str, limits: Limits) -> Verdict | None:
    """Find adjacent copies of one unit."""
    if limits == Limits():
        return _of_copies("tandem", find_endless(text))
    copies = LOOP_COPIES if limits.min_copies is None else limits.min_copies
    length = ENDLESS_CHARACTERS if limits.min_length is None else limits.min_length
    return _of_copies("tandem", find_repetition(text, min_copies=copies, min_length=length, at_end=limits.at_end))


def block(text: str, _: Limits) -> Verdict | None:
    """Find copies of one unit at the end of the text; two are enough if the unit is long. For texts that were cut off."""
    return _of_copies("block", find_block(text))


def _of_copies(name: str, found: Repetition | None) -> Verdict | None:
    if found is None:
        return None
    return Verdict(name, found.start, found.length, found.copies, str(found.unit), found.length - found.period)


def structure(text: str, _: Limits) -> Verdict | None:
    """Find a frame that is repeated at the end of the text with other words or numbers. For texts that were cut off."""
    found = find_structure(text)
    verdict = _of_run("structure", found)
    return replace(verdict, skeleton=found.skeleton) if found and verdict else None


def gram30(text: str, _: Limits) -> Verdict | None:
    """Find 30 words in a row that occur at least 20 times anywhere, as other studies do."""
    found = repeated_gram(text)
    return Verdict("gram30", found.start, found.end - found.start, found.count, found.gram, None) if found else None


def paper20(text: str, _: Limits) -> Verdict | None:
    """Find a substring of at least 3 characters that occurs at least 20 times anywhere; the unit has 3 characters.

    If a longer substring occurs that often, so does its prefix. `repeated_substrings` lists all, with far more memory.
    """
    codes = as_array(text)
    size = FIRST_LOOK
    while (unit := _most_frequent_three(codes[:size])) is None:
        if size >= len(codes):
            return None
        size *= 2
    first, second, third = map(ord, unit)
    count = np.count_nonzero((codes[:-2] == first) & (codes[1:-1] == second) & (codes[2:] == third))
    start = text.find(unit)
    return Verdict("paper20", start, text.rfind(unit) + len(unit) - start, int(count), unit, None)


def _most_frequent_three(codes: npt.NDArray[np.uint32]) -> str | None:
    """Return the most frequent substring of three characters, or `None` if it is too rare."""
    wide = codes.astype(np.int64)
    names, counts = np.unique(wide[:-2] << 42 | wide[1:-1] << 21 | wide[2:], return_counts=True)
    if counts.max(initial=0) < MIN_COUNT:
        return None
    name = int(names[np.argmax(counts)])
    return "".join(chr(name >> shift & 0x1FFFFF) for shift in (42, 21, 0))


def drift(text: str, _: Limits) -> Verdict | None:
    """Find runs of several units, one after another. The first copy of each run does not count as wasted."""
    found = find_drift(text)
    if found is None:
        return None
    units = " | ".join(dict.fromkeys(str(run.unit) for run in found.runs))
    copies = sum(run.copies for run in found.runs)
    length = found.end - found.start
    wasted = sum(run.length - run.period for run in found.runs)
    return Verdict("drift", found.start, length, copies, units, min(wasted, length))  # runs may overlap


def counter(text: str, limits: Limits) -> Verdict | None:
    """Find adjacent copies that differ only by numbers that grow steadily."""
    return _of_run("counter", find_counter(text, at_end=limits.at_end))


def edited(text: str, limits: Limits) -> Verdict | None:
    """Find adjacent copies in which a word changes now and then."""
    return _of_run("edited", find_edited(text, at_end=limits.at_end))


def _of_run(name: str, found: NearCopies | None) -> Verdict | None:
    if found is None:
        return None
    length = found.end - found.start
    return Verdict(name, found.start, length, found.copies, found.unit, length - len(found.unit))


CRITERIA: dict[str, Callable[[str, Limits], Verdict | None]] = {
    criterion.__name__: criterion for criterion in (tandem, block, structure, counter, drift, edited, paper20, gram30)
}


def dual(exact: bool, judged: bool | None) -> bool | None:
    """Return whether exact search and judge agree that there is a loop; `None` if the judge's answer is needed but missing.

    >>> dual(True, True), dual(True, False), dual(False, None), dual(True, None)
    (True, False, False, None)
    """
    return judged if exact else False
