"""Find numbers in a text, as digits or English words, and replace each with one symbol."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["NUMBER", "Numeral", "Template", "numerals", "template"]

NUMBER = 0x110000  # the symbol for a number: the first value that is not a code point

_SMALL = (  # noqa: SIM905
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()  # noqa: SIM905
_ORDINALS = {
    "one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth",
    "twelve": "twelfth",
}  # fmt: skip


def _words() -> Iterator[tuple[str, int]]:
    """Yield the cardinal and ordinal words for 0 to 99 with their values."""
    cardinals = [*_SMALL, *(ten + one for ten in _TENS for one in ("", *(f"-{word}" for word in _SMALL[1:10])))]
    for value, word in enumerate(cardinals):
        yield word, value
        head, hyphen, last = word.rpartition("-")
        regular = last[:-1] + "ieth" if last.endswith("y") else last + "th"
        yield head + hyphen + _ORDINALS.get(last, regular), value


def _trie(words: list[str]) -> str:
    """Return a pattern for exactly these words as a trie, which is ten times as fast as a list of alternatives."""
    tails: dict[str, list[str]] = {}
    for word in words:
        tails.setdefault(word[:1], []).append(word[1:])
    if list(tails) == [""]:
        return ""
    parts = [head + _trie(tails[head]) if head else "" for head in sorted(tails, reverse=True)]
    return f"(?:{'|'.join(parts)})"


_VALUES = dict(_words())
_FIGURES = r"(?<![0-9])(?:[0-9]{1,3}(?:,[0-9]{3}){1,5}|[0-9]{1,18})(?![0-9])"
_PATTERN = re.compile(rf"{_FIGURES}|\b(?ai:{_trie(list(_VALUES))})\b")


class Numeral(NamedTuple):
    """A number and its position in the text."""

    start: int
    end: int
    value: int


class Template(NamedTuple):
    """A text in which each number is replaced with one symbol.

    Args:
        items: code points, and `NUMBER` for each number.
        places: indices of the items that are numbers.
        values: the values of these numbers.
        cut: how many characters were removed before each number, and a last entry for the whole text.
    """

    items: npt.NDArray[np.uint32]
    places: npt.NDArray[np.int64]
    values: npt.NDArray[np.int64]
    cut: npt.NDArray[np.int64]

    def position(self, item: int) -> int:
        """Return the position of an item in the text. The index after the last item gives the text's length."""
        return int(item + self.cut[np.searchsorted(self.places, item)])


def numerals(text: str) -> Iterator[Numeral]:
    """Yield every number: up to 18 digits, with or without thousands separators, and the words for 0 to 99.

    Longer strings of digits are ignored: they are not counters.

    >>> [(text.value, text.start) for text in numerals("Step 17 of 1,200: the twenty-first try")]
    [(17, 5), (1200, 11), (21, 22)]
    """
    for match in _PATTERN.finditer(text):
        word = match.group().lower()
        value = _VALUES.get(word)
        yield Numeral(match.start(), match.end(), int(word.replace(",", "")) if value is None else value)


def template(text: str) -> Template:
    """Return the text with one symbol for each number.

    >>> [int(item) for item in template("a 12").items] == [ord("a"), ord(" "), NUMBER]
    True
    """
    items = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4").copy()
    found = np.array([*numerals(text)], dtype=np.int64).reshape(-1, 3)
    starts, ends, values = found.T
    kept = np.ones(len(items), dtype=bool)
    for start, end in zip(starts.tolist(), ends.tolist()):
        items[start] = NUMBER
        kept[start + 1 : end] = False
    cut = np.concatenate(([0], np.cumsum(ends - starts - 1)))
    return Template(items[kept], starts - cut[:-1], values, cut)
