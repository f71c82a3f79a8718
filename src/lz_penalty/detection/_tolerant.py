"""Find copies that are not exactly equal: they contain counters (`counter`), or a word changes (`edited`).

Both criteria read text: for token ids, give a function that decodes one id.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lz_penalty._checks import boolean, integer, real
from lz_penalty.detection._numerals import Template, template
from lz_penalty.detection._tandem import MAX_ITEMS, Items, endless_length, find_repetitions
from lz_penalty.errors import LZPenaltyError

__all__ = ["CounterRun", "EditedRun", "find_counter", "find_edited"]

_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class NearCopies:
    """A stretch of adjacent copies that are not exactly equal.

    Args:
        start: where the first copy begins, counted in the sequence's items.
        end: where the stretch ends, exclusive; the last copy may be incomplete.
        copies: the number of copies, not rounded down.
        coverage: (end - start) / length of the sequence; 0 to 1.
        unit: the text of the first copy.
    """

    start: int
    end: int
    copies: float
    coverage: float
    unit: str

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class CounterRun(NearCopies):
    """Copies that differ only by counters.

    Args:
        steps: by how much each number of the unit grows from copy to copy; 0 for a constant number.
    """

    steps: tuple[int, ...]


@dataclass(frozen=True)
class EditedRun(NearCopies):
    """Copies in which a few words change.

    Args:
        edits: the number of words that differ from the same word one copy earlier.
    """

    edits: int


def find_counter(
    sequence: Items,
    *,
    min_copies: float = 12,
    min_length: int | None = None,
    at_end: bool = True,
    decode: Callable[[int], str] | None = None,
) -> CounterRun | None:
    """Return the longest stretch of adjacent copies that differ only by counters: "Step 17: again. Step 18: again. ...".

    The definition, on the text with every number (see `numerals`) replaced by one symbol, where `value` is its number:

        for begin, end, p such that p is the smallest period of text[begin:end] and (end - begin) / p >= min_copies:
            numbers grow steadily:  value[i] - value[i - p] == value[i - p] - value[i - 2 * p]
                                    for every number i in begin + 2 * p .. end - 1
            and some number grows:  value[i] != value[i - p] for some number i in begin + p .. end - 1
            and it cannot be longer on either side
            found = longest in characters, then earliest

    A number at the end of the text may be incomplete, so it is not compared.

    This criterion also flags a list that somebody asked for, if it counts steadily and contains nothing else.

    Args:
        sequence: a `str`, ASCII `bytes`, or token ids with `decode`.
        min_copies: at least 3, so that a step occurs twice.
        min_length: the least number of items; by default 300 characters or bytes, or 80 token ids.
        at_end: whether the stretch must reach the end of the sequence.
        decode: a function that returns the text of one token id.

    >>> found = find_counter("".join(f"Step {i}: check it again. " for i in range(17, 40)))
    >>> found.unit, found.steps, found.copies
    ('Step 17: check it again. ', (1,), 23.0)
    >>> find_counter("3, 1, 4, 1, 5, 9, 2, 6, " * 2, min_length=10) is None
    True
    """
    min_copies = real(3, 1_000_000)("min_copies", min_copies)
    text = _text(sequence, decode, min_length)
    boolean("at_end", at_end)
    shape = template(text.text)
    best: tuple[int, int, int] | None = None
    span = (0, 0)
    for begin, end, period in _steady(shape, min_copies):
        if at_end and end < len(shape.items):
            continue
        here = shape.position(begin), shape.position(end)
        if here[1] - here[0] > span[1] - span[0] and text.is_enough(*here):
            best, span = (begin, end, period), here
    if best is None:
        return None
    begin, end, period = best
    start, stop = text.place(*span)
    unit = text.text[span[0] : shape.position(begin + period)]
    coverage = (stop - start) / len(sequence)
    return CounterRun(start, stop, (end - begin) / period, coverage, unit, _steps(shape, begin, period))


def find_edited(
    sequence: Items,
    *,
    min_copies: float = 12,
    max_edits: float = 0.125,
    max_period: int = 64,
    min_length: int | None = None,
    at_end: bool = True,
    decode: Callable[[int], str] | None = None,
) -> EditedRun | None:
    """Return the longest stretch of adjacent copies in which few words differ from one copy to the next.

    The definition, on the text's words without punctuation and spaces:

        for p in 1 .. max_period:
            for begin, end such that in every p words in a row, all in begin + p .. end - 1,
                    word[i] != word[i - p] for at most max_edits * p of them
                and word[begin + p] == word[begin], word[end - 1] == word[end - 1 - p]
                and it cannot be longer on either side
                and (end - begin) / p >= min_copies and some word in it differs from the word p before it
                found = longest in characters, then earliest, then smallest p

    The last word of the text may be incomplete, so it counts as equal. An inserted or missing word shifts all words
    after it, so such copies are not found.

    Args:
        sequence: a `str`, ASCII `bytes`, or token ids with `decode`.
        min_copies: at least 2.
        max_edits: the largest share of a copy's words that may change, 0.01 to 0.5; 0.125 is one word in eight.
        max_period: the largest number of words in a copy, at most 1,024; the time is proportional to it.
        min_length: the least number of items; by default 300 characters or bytes, or 80 token ids.
        at_end: whether the stretch must reach the end of the sequence. Characters after its last word must be equal to
            those after the same word one copy earlier, or to the first of them.
        decode: a function that returns the text of one token id.

    >>> found = find_edited("".join(f"It was {name} who said that it was late. " for name in ["Ann", "Bob"] * 8))
    >>> found.copies, found.edits, found.unit
    (16.0, 15, 'It was Ann who said that it was late.')
    """
    min_copies = real(2, 1_000_000)("min_copies", min_copies)
    max_edits = real(0.01, 0.5)("max_edits", max_edits)
    max_period = integer(1, 1_024)("max_period", max_period)
    text = _text(sequence, decode, min_length)
    boolean("at_end", at_end)
    words = _split(text.text)
    count = len(words.ids)
    cut = count > 0 and words.ends[-1] == len(text.text)
    best: tuple[int, int, int, int] | None = None
    span = (0, 0)
    for period in range(int(1 / max_edits), min(max_period, int(count / min_copies)) + 1):
        for begin, end, edits in _alike(words.ids, period, int(max_edits * period), min_copies, cut):
            reaches = end == count and _ends_alike(text.text, words, period)
            if at_end and not reaches:
                continue
            here = words.starts[begin], len(text.text) if reaches else words.ends[end - 1]
            longer = (here[1] - here[0], -here[0]) > (span[1] - span[0], -span[0])
            if longer and text.is_enough(*here):
                best, span = (begin, end, period, edits), here
    if best is None:
        return None
    begin, end, period, edits = best
    start, stop = text.place(*span)
    unit = text.text[span[0] : words.starts[begin + period]].strip()
    return EditedRun(start, stop, (end - begin) / period, (stop - start) / len(sequence), unit, edits)


# ---------------------------------------------------------------- the text of a sequence


class _Text(NamedTuple):
    """A text, the end position of each token (`None` if the items are characters), and the least length in items."""

    text: str
    ends: list[int] | None
    least: int

    def place(self, begin: int, end: int) -> tuple[int, int]:
        """Return the range of items that contain these characters."""
        if self.ends is None:
            return begin, end
        return bisect_right(self.ends, begin), bisect_right(self.ends, end - 1) + 1

    def is_enough(self, begin: int, end: int) -> bool:
        """Return whether at least `least` items contain these characters."""
        first, last = self.place(begin, end)
        return last - first >= self.least


def _text(sequence: Items, decode: Callable[[int], str] | None, min_length: int | None) -> _Text:
    least = integer(1, MAX_ITEMS)("min_length", endless_length(sequence) if min_length is None else min_length)
    if isinstance(sequence, (str, bytes)):
        return _Text(sequence if isinstance(sequence, str) else sequence.decode("latin-1"), None, least)
    if decode is None:
        raise LZPenaltyError("decode = None: token ids need a function that returns the text of one id.")
    pieces = [decode(int(token)) for token in sequence]
    return _Text("".join(pieces), list(accumulate(map(len, pieces))), least)


# ---------------------------------------------------------------- counter


def _steady(shape: Template, min_copies: float) -> list[tuple[int, int, int]]:
    """Return begin, end and period of all stretches of the template whose numbers grow steadily, by begin."""
    places, values = shape.places, shape.values
    if len(places) and places[-1] == len(shape.items) - 1:
        places, values = places[:-1], values[:-1]  # the last number may be incomplete
    found = []
    for run in find_repetitions(shape.items, min_copies=min_copies, min_length=1):
        first, last, p = run.start, run.start + run.length, run.period
        low, second, high = np.searchsorted(places, (first, first + p, last))
        each = second - low  # numbers in a copy
        steps = values[second:high] - values[low : high - each]
        breaks = places[second + each : high][steps[each:] != steps[: max(0, len(steps) - each)]]
        changed = places[second:high][steps != 0]
        for begin, end in zip([first, *(breaks - 2 * p + 1)], [*breaks, last], strict=True):
            if (end - begin) / p < min_copies:
                continue
            if np.searchsorted(changed, begin + p) < np.searchsorted(changed, end):
                found.append((int(begin), int(end), p))
    return sorted(found)


def _steps(shape: Template, begin: int, period: int) -> tuple[int, ...]:
    """Return by how much each number of the unit grows from the first copy to the second."""
    first, second, third = np.searchsorted(shape.places, (begin, begin + period, begin + 2 * period))
    return tuple(int(step) for step in shape.values[second:third] - shape.values[first:second])


# ---------------------------------------------------------------- edited


class _Words(NamedTuple):
    """The words of a text: where each begins and ends, and an id for each different word."""

    starts: array[int]
    ends: array[int]
    ids: npt.NDArray[np.int64]


def _split(text: str) -> _Words:
    starts, ends, ids = array("q"), array("q"), array("q")
    number: dict[str, int] = {}
    for match in _WORD.finditer(text):
        starts.append(match.start())
        ends.append(match.end())
        ids.append(number.setdefault(match.group(), len(number)))
    return _Words(starts, ends, np.frombuffer(ids, dtype=np.int64))


def _ends_alike(text: str, words: _Words, period: int) -> bool:
    """Return whether the characters after the last word also follow the same word one copy earlier."""
    return text[words.ends[-1 - period] : words.starts[-period]].startswith(text[words.ends[-1] :])


def _alike(
    words: npt.NDArray[np.int64], period: int, allowed: int, min_copies: float, cut: bool
) -> Iterator[tuple[int, int, int]]:
    """Yield begin, end and edits of every maximal stretch of nearly equal copies with this period.

    Comparison c compares the words c and c + period. A window of `period` comparisons is good if few fail.
    """
    differ = words[period:] != words[:-period]
    if cut:
        differ[-1] = False
    total = np.concatenate(([0], np.cumsum(differ)))
    good = total[period:] - total[:-period] <= allowed
    edges = np.flatnonzero(np.diff(np.concatenate(([False], good, [False])).astype(np.int8)))
    same = np.flatnonzero(~differ)
    for first, after in edges.reshape(-1, 2):
        # Good windows begin at first .. after - 1. Failed comparisons at either end are cut off.
        inside = same[np.searchsorted(same, first) : np.searchsorted(same, after - 1 + period)]
        if not len(inside):
            continue
        begin, end = int(inside[0]), int(inside[-1]) + 1 + period
        edits = int(total[end - period] - total[begin])
        if edits and (end - begin) / period >= min_copies:
            yield begin, end, edits
