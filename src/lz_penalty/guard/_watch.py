"""Watch a text for loops as it arrives: one watch for each choice and channel of an answer."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Protocol

from lz_penalty._checks import integer, real
from lz_penalty.detection import Repetition, RepetitionDetector
from lz_penalty.detection._verdict import CAPPED, CRITERIA, FINISHED, Limits
from lz_penalty.detection._verdict import Verdict as TextVerdict

__all__ = ["Answer", "Part", "Thresholds", "Verdict", "Watch", "examine", "is_quick", "warm_up"]

MAX_UNIT = 80  # characters of a unit that a verdict shows
INLINE = 8_192  # bytes or characters that Numba examines within a few milliseconds
WARM_UP = "Three copies are no loop, but the last 64 characters occur before. "  # so every criterion is computed
MAX_WATCHES = 64  # of one answer; further choices and tool calls are not watched

_PUNCTUATION = frozenset(" \n.,!?;:'\"-\u2019\u201c\u201d\u2026")
_LETTERS = 0.6  # the least share of letters in a unit of words


@dataclass(frozen=True)
class Thresholds:
    """When a text counts as a loop: so many adjacent copies of one unit, and so many characters in all.

    Healthy texts contain long runs too: arrays of zeros, empty forms, equal records. They rarely consist of words alone.
    So a run counts earlier if its unit has only letters, spaces and punctuation marks, and at least 60 % letters.
    Whole answers are also examined with the criteria of `lz_penalty.detection`, for which a shorter loop is enough.

    Args:
        max_period: characters of the longest unit.
        min_copies: the least number of copies.
        min_length: the least number of characters of a run whose unit consists of words.
        min_length_data: the least number of characters of any other run.
    """

    max_period: int = 2_048
    min_copies: float = 5.0
    min_length: int = 2_000
    min_length_data: int = 5_000

    def __post_init__(self) -> None:
        checks = {
            "max_period": integer(1, 16_384),
            "min_copies": real(3, 64),
            "min_length": integer(1, 1_000_000),
            "min_length_data": integer(1, 1_000_000),
        }
        for field in fields(self):
            object.__setattr__(self, field.name, checks[field.name](field.name, getattr(self, field.name)))
        integer(self.min_length, 1_000_000)("min_length_data", self.min_length_data)


@dataclass(frozen=True)
class Verdict:
    """A loop in an answer.

    Attributes:
        criterion: which criterion found it: `tandem`, adjacent copies of one unit; in whole answers that a limit cut off also
            `block` and `structure`.
        unit: the text that is repeated.
        copies: how often, up to the character at which it was found.
        onset: the position of the first copy, in characters of this channel.
        channel: `content`, `reasoning` or `tool`, the arguments of a tool call.
        choice: the number of the choice; in the responses API, of the output item.
    """

    criterion: str
    unit: str
    copies: float
    onset: int
    channel: str = "content"
    choice: int = 0

    @property
    def first_copy_end(self) -> int:
        """The position after the first copy: a text that is cut there keeps the unit once."""
        return self.onset + len(self.unit)

    def to_json(self) -> dict[str, Any]:
        """Return the verdict for an answer's extra field. A long unit is cut, and control characters are escaped.

        >>> Verdict("tandem", "no\\n", 700.0, 12).to_json()["unit"]
        'no\\\\n'
        """
        return self.without_text() | {"unit": _escaped(self.unit)}

    def without_text(self) -> dict[str, Any]:
        """Return the verdict for a log: the length of the unit, and not the unit."""
        return {
            "criterion": self.criterion,
            "channel": self.channel,
            "choice": self.choice,
            "copies": round(self.copies, 2),
            "onset": self.onset,
            "unit_length": len(self.unit),
        }


def _escaped(unit: str) -> str:
    shown = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in unit[:MAX_UNIT])
    return shown if len(unit) <= MAX_UNIT and len(shown) <= MAX_UNIT else shown[: MAX_UNIT - 3] + "..."


class Watch(Protocol):
    """A detector of loops in one text. A second criterion is another class with this method."""

    def feed(self, text: str) -> Verdict | None:
        """Append a piece of text and return the loop that it completes, or `None`."""


class TandemWatch:
    """A `Watch` for exact copies of one unit in a row."""

    def __init__(self, thresholds: Thresholds) -> None:
        self._words, self._data = thresholds.min_length, thresholds.min_length_data
        self._detector = RepetitionDetector(
            max_period=thresholds.max_period,
            min_copies=thresholds.min_copies,
            min_length=thresholds.min_length,
            max_rewind=0,
        )
        self._long: dict[tuple[int, int], int] = {}  # stretches that are long enough for words, and when they count

    def feed(self, text: str) -> Verdict | None:
        """Append a piece of text and return the loop that it completes, or `None`."""
        detector = self._detector
        push = detector.push
        for code in map(ord, text):
            if push(code) is not None:
                self._begin()
            if self._long:
                found = self._counts()
                if found is not None:
                    return _verdict(found)
        return None

    def _begin(self) -> None:
        """Remember the stretches that are long enough for words, with the length at which each counts."""
        for period, start in self._detector.stretches:
            run = self._detector.run(period, start)
            if run.length >= self._words:
                least = self._words if is_words(_text(run)) else self._data
                self._long.setdefault((period, start), start + least)

    def _counts(self) -> Repetition | None:
        going = set(self._detector.stretches)
        self._long = {stretch: end for stretch, end in self._long.items() if stretch in going}
        for (period, start), end in self._long.items():
            if self._detector.length >= end:
                return self._detector.run(period, start)
        return None


def _verdict(found: Repetition) -> Verdict:
    return Verdict("tandem", _text(found), found.copies, found.start)


def _text(run: Repetition) -> str:
    return run.unit if isinstance(run.unit, str) else "".join(chr(code) for code in run.unit)


def is_words(unit: Iterable[str]) -> bool:
    """Return whether a unit has only letters, spaces and punctuation marks, and at least 60 % letters.

    >>> is_words(" I am not sure."), is_words("0, "), is_words("- - "), is_words(" null,\\t")
    (True, False, False, False)
    """
    letters = others = 0
    for one in unit:
        if one.isalpha() or unicodedata.category(one) in ("Mn", "Mc"):
            letters += 1
        elif one in _PUNCTUATION:
            others += 1
        else:
            return False
    return letters >= _LETTERS * (letters + others)


class Part(NamedTuple):
    """A piece of an answer's text.

    Args:
        choice: the number of the choice or output item.
        channel: `content`, `reasoning` or `tool`.
        number: tells texts of one channel apart, such as two tool calls.
        text: the piece.
    """

    choice: int
    channel: str
    number: int
    text: str


class Answer:
    """Watch all texts of one answer.

    Args:
        thresholds: when a text counts as a loop.
        watch: makes the watch of one text; by default a `TandemWatch`.
    """

    def __init__(self, thresholds: Thresholds, watch: Callable[[Thresholds], Watch] = TandemWatch) -> None:
        self._thresholds = thresholds
        self._make = watch
        self._watches: dict[tuple[int, str, int], Watch] = {}
        self._looped: set[tuple[int, str, int]] = set()  # texts whose loop was reported
        self.unwatched = False  # whether there were more texts than watches

    def feed(self, part: Part) -> Verdict | None:
        """Append a piece and return the loop that it completes, or `None`."""
        key = part[:3]
        if key in self._looped:
            return None
        watch = self._watches.get(key)
        if watch is None:
            if len(self._watches) >= MAX_WATCHES:
                self.unwatched = True
                return None
            watch = self._watches[key] = self._make(self._thresholds)
        found = _of(watch.feed(part.text), part)
        if found is not None:
            self._looped.add(key)
        return found


def examine(
    part: Part,
    thresholds: Thresholds,
    *,
    capped: bool = False,
    watch: Callable[[Thresholds], Watch] = TandemWatch,
) -> Verdict | None:
    """Return the loop in a whole text, or `None`.

    A run that reaches the end of the text counts earlier, because nothing closed it: `lz_penalty.detection` has the criteria
    for finished texts, and more of them for texts that a limit on tokens cut off (`capped`).
    """
    found = watch(thresholds).feed(part.text)
    for name in CAPPED if capped else FINISHED:
        found = found or _of_criterion(CRITERIA[name](part.text, Limits()))
    return _of(found, part)


def is_quick(size: int) -> bool:
    """Return whether an answer of this size is examined without a thread. Without Numba, no answer is."""
    from lz_penalty.detection._runs import COMPILED  # imports Numba

    return COMPILED and size <= INLINE


def warm_up() -> None:
    """Examine short texts, so that Numba is imported and compiles its functions before the first answer waits for them."""
    for unit in (WARM_UP, WARM_UP + "\u2026"):  # Numba compiles twice: for ASCII and for other texts
        examine(Part(0, "content", 0, unit * 3), Thresholds(), capped=True)


def _of_criterion(found: TextVerdict | None) -> Verdict | None:
    return None if found is None else Verdict(found.criterion, found.unit, found.copies, found.start)


def _of(found: Verdict | None, part: Part) -> Verdict | None:
    if found is None:
        return None
    return Verdict(found.criterion, found.unit, found.copies, found.onset, part.channel, part.choice)
