"""Numbers in a text, in figures and in English words, and the text with each of them replaced by one symbol."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["NUMBER", "Numeral", "Template", "numerals", "template"]

NUMBER = 0x110000  # the symbol of a number: the first value that is no code point

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
    """The words for 0 to 99, cardinal and ordinal."""
    cardinals = [*_SMALL, *(ten + one for ten in _TENS for one in ("", *(f"-{word}" for word in _SMALL[1:10])))]
    for value, word in enumerate(cardinals):
        yield word, value
        head, hyphen, last = word.rpartition("-")
        regular = last[:-1] + "ieth" if last.endswith("y") else last + "th"
        yield head + hyphen + _ORDINALS.get(last, regular), value


def _trie(words: list[str]) -> str:
    """A pattern of exactly these words, longest first, in which no letter is tried twice: ten times as fast here."""
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
    """A number and where it stands in the text."""

    start: int
    end: int
    value: int


class Template(NamedTuple):
    """A text whose numbers are one symbol each.

    Args:
        items: code points, and `NUMBER` for each number.
        places: which items are numbers.
        values: those numbers.
        cut: characters that the numbers up to each one have lost, 0 before the first: one entry more than numbers.
    """

    items: npt.NDArray[np.uint32]
    places: npt.NDArray[np.int64]
    values: npt.NDArray[np.int64]
    cut: npt.NDArray[np.int64]

    def position(self, item: int) -> int:
        """Where an item stands in the text; the text's length for the one after the last."""
        return int(item + self.cut[np.searchsorted(self.places, item)])


def numerals(text: str) -> Iterator[Numeral]:
    """Every number: figures (up to 18, with or without commas at the thousands) and the words for 0 to 99.

    More figures than that are no counter and are left alone.

    >>> [(text.value, text.start) for text in numerals("Step 17 of 1,200: the twenty-first try")]
    [(17, 5), (1200, 11), (21, 22)]
    """
    for match in _PATTERN.finditer(text):
        word = match.group().lower()
        value = _VALUES.get(word)
        yield Numeral(match.start(), match.end(), int(word.replace(",", "")) if value is None else value)


def template(text: str) -> Template:
    """The text with one symbol for each number.

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
