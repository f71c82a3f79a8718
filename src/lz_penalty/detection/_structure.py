"""Find texts that end in copies of themselves: the same frame with other words or numbers, or a few copies of a long unit.

Both criteria are for texts that a limit on tokens cut off. A table or a list of tests looks the same, but a finished text
closes it; a text that repeats until the limit does not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lz_penalty._checks import integer, real
from lz_penalty.detection._tandem import MAX_ITEMS, Repetition, make_repetition
from lz_penalty.detection._tolerant import NearCopies
from lz_penalty.errors import LZPenaltyError, bad_value, show

__all__ = ["STRUCTURE_RULES", "StructuralRun", "StructureDetector", "find_block", "find_structure"]

# A rule is a number of letters and digits, and the share of them that must be predicted; docs/detection.md has the rates.
STRUCTURE_RULES = ((200, 0.98), (400, 0.95), (800, 0.9))
STRUCTURE_COPIES = 2.0
BLOCK_COPIES, BLOCK_AFTER = 2.0, 200
TAIL = 32_768  # characters that are read first; the rest is read only if the text ends in a repetition


@dataclass(frozen=True)
class StructuralRun(NearCopies):
    """The end of a text that the text before it predicts. `unit` is its newest copy.

    Args:
        skeleton: the newest copy with `w` for words and `#` for a number; at most 200 items.
    """

    skeleton: str


class StructureDetector:
    """Read a stream of text and report when it begins to repeat a frame: the same signs, with other words or numbers.

    `_skeleton` says what an item of the text is and when it is predicted. A rule `(length, share)` is met if of the last
    items, with `length` letters and digits in all, this share is predicted. There must be `min_copies` of the unit since
    the beginning of the repetition. The unit is as long as the distance at which most is predicted.

    Takes below a microsecond per character with Numba, and 300 kB, whatever the length of the stream.

    Args:
        rules: pairs of a number of letters and digits, and a share; up to 8.
        min_copies: the least number of copies, at least 1.5.

    >>> detector = StructureDetector()
    >>> found = [detector.push(f"case {i}: return '{i * i}';\\n") for i in range(40)]
    >>> next(i for i, one in enumerate(found) if one), detector.current.skeleton
    (18, "w # : w ' # ' ; \\\\n")
    """

    def __init__(
        self, *, rules: tuple[tuple[int, float], ...] = STRUCTURE_RULES, min_copies: float = STRUCTURE_COPIES
    ) -> None:
        if not isinstance(rules, tuple) or not 1 <= len(rules) <= 8 or not all(len(rule) == 2 for rule in rules):
            raise LZPenaltyError(f"rules = {show(rules)}: must be a tuple of 1 to 8 pairs of a number and a share.")
        for length, share in rules:
            integer(20, 1_500)("rules: length", length)
            real(0.3, 1)("rules: share", share)
        from lz_penalty.detection._skeleton import Reader  # imports Numba

        self._reader = Reader(rules, real(1.5, 1_000)("min_copies", min_copies))

    @property
    def length(self) -> int:
        """The number of characters so far."""
        return self._reader.length

    @property
    def current(self) -> StructuralRun | None:
        """The repetition that the text ends with, or `None`."""
        if not self._reader.met:
            return None
        start, end = self._reader.onset, self.length
        unit, kinds = self._reader.unit()
        copies, coverage = (end - start) / len(unit), (end - start) / end
        return StructuralRun(start, end, copies, coverage, self._reader.text(unit), " ".join(kinds))

    def push(self, text: str) -> StructuralRun | None:
        """Append text and return the repetition that begins to count in it, or `None`."""
        if not isinstance(text, str):
            raise bad_value("text", text, "a str")
        before = self._reader.met
        self._reader.read(_codes(text))
        return None if before else self.current


def find_structure(
    text: str, *, rules: tuple[tuple[int, float], ...] = STRUCTURE_RULES, min_copies: float = STRUCTURE_COPIES
) -> StructuralRun | None:
    """Return the repetition of a frame that the text ends with, or `None`: what `StructureDetector` says at its end.

    >>> text = "".join(f"assert double({i}) == {2 * i}\\n" for i in range(50))
    >>> found = find_structure(text)
    >>> found.start, round(found.copies), found.skeleton
    (0, 49, 'w ( # ) = # \\\\n')
    """
    if len(text) > TAIL:
        tail = StructureDetector(rules=rules, min_copies=min_copies)
        tail.push(text[-TAIL:])
        if tail.current is None:
            return None
    detector = StructureDetector(rules=rules, min_copies=min_copies)
    detector.push(text)
    return detector.current


def find_block(text: str, *, min_copies: float = BLOCK_COPIES, min_after: int = BLOCK_AFTER) -> Repetition | None:
    """Return the copies of one unit that the text ends with, or `None`. Two copies are enough if the unit is long.

    The definition:

        p = the smallest period such that the text ends with min_copies * p characters or more of period p,
            of which min_after or more come after the first copy

    At most 64 periods are tried: the distances at which the last 32 characters of the text occur before.

    Args:
        text: the text.
        min_copies: the least number of copies, a real number of at least 1.5.
        min_after: the least number of characters after the first copy, at least 32.

    >>> find_block("Intro. " + "A long paragraph, word by word. " * 9 + "A long para").copies
    9.40625
    >>> find_block("Intro. " + "A long paragraph, word by word. " * 3) is None
    True
    """
    min_copies = real(1.5, 1_000)("min_copies", min_copies)
    min_after = integer(32, MAX_ITEMS)("min_after", min_after)
    n, end = len(text), len(text) - 1
    needle = text[-32:]
    for _ in range(64):
        place = text.rfind(needle, 0, end)
        if place < 0:
            break
        period = n - len(needle) - place
        start = _start_of(text, period)
        if n - start >= min_copies * period and n - start - period >= min_after:
            return make_repetition(text, start, period, n)
        end = place + len(needle) - 1
    return None


def _start_of(text: str, period: int) -> int:
    """Return where the stretch of this period begins that reaches the end of the text."""
    size, start = 64, len(text) - period
    while start > 0:
        begin = max(0, start - size)
        if text[begin:start] == text[begin + period : start + period]:
            start, size = begin, size * 2
        elif size == 1:
            break
        else:
            size = max(1, size // 4)
    return start


def _codes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
