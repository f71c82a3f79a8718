"""Find substrings that recur anywhere: the paper's literal criterion, `paper20`.

The paper calls a text degenerate if a substring of at least 3 characters occurs at least 20 times. Taken literally,
this is true for most long texts (" the "). This module reproduces that criterion. To find loops, use `tandem`.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lz_penalty._checks import integer
from lz_penalty.detection._tandem import DEGENERATE_COPIES, MAX_ITEMS, Items, as_array
from lz_penalty.errors import BackendUnavailableError

__all__ = ["RepeatedGram", "RepeatedSubstring", "paper20", "repeated_gram", "repeated_substrings"]

MIN_LENGTH = 3
MIN_COUNT = DEGENERATE_COPIES
GRAM_WORDS, GRAM_COUNT = 30, 20  # as in "Wait, Wait, Wait" (arXiv 2512.12895), which counts tokens
FIRST_LOOK = 4096  # items that are counted first; each further attempt counts twice as many


_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class RepeatedSubstring:
    """A substring and how often it occurs.

    Args:
        substring: a `str` or `bytes` if one was searched, else a tuple of ints.
        count: the number of occurrences, which may overlap.
        start: the position of the first occurrence.
    """

    substring: str | bytes | tuple[int, ...]
    count: int
    start: int

    @property
    def length(self) -> int:
        """The number of items in the substring."""
        return len(self.substring)


@dataclass(frozen=True)
class RepeatedGram:
    """Words that recur in the same order.

    Args:
        gram: the words, with single blanks between them.
        count: the number of occurrences, which may overlap.
        start: the position of the first occurrence.
        end: where the last occurrence ends, exclusive.
    """

    gram: str
    count: int
    start: int
    end: int


def repeated_gram(text: str, size: int = GRAM_WORDS, min_count: int = GRAM_COUNT) -> RepeatedGram | None:
    """Return the most frequent sequence of `size` words, or `None` if it occurs less often than `min_count` times.

    Other studies call a text a loop if some 30-gram occurs at least 20 times. They count tokens; this counts words and
    numbers, whatever is between them.

    >>> repeated_gram("Wait, let me think about it again. " * 30).count
    26
    >>> repeated_gram("Wait, let me think about it again. " * 20) is None
    True
    """
    size, min_count = integer(1, 1_000)("size", size), integer(2, MAX_ITEMS)("min_count", min_count)
    words = list(_WORD.finditer(text))
    if len(words) < size + min_count - 1:
        return None
    known: dict[str, int] = {}
    ids = np.array([known.setdefault(word.group(), len(known)) for word in words], dtype=np.uint64)
    keys = np.zeros(len(ids) - size + 1, dtype=np.uint64)
    for place in range(size):
        keys = keys * np.uint64(0x9E3779B97F4A7C15) + ids[place : place + len(keys)] + np.uint64(1)
    _, first, which, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    best = int(np.lexsort((first, -counts))[0])
    if counts[best] < min_count:
        return None
    begin, last = int(first[best]), int(np.flatnonzero(which == best)[-1])
    gram = " ".join(word.group() for word in words[begin : begin + size])
    return RepeatedGram(gram, int(counts[best]), words[begin].start(), words[last + size - 1].end())


def paper20(text: Items, min_length: int = MIN_LENGTH, min_count: int = MIN_COUNT) -> bool:
    """Return whether `repeated_substrings` would find anything; needs only NumPy.

    A substring cannot occur more often than its prefix, so it is enough to count substrings of length `min_length`.

    >>> paper20("she said that the " * 5), paper20("she said that the " * 20)
    (False, True)
    """
    min_length, min_count = _checked(min_length, min_count)
    items = as_array(text)
    size = FIRST_LOOK
    while size < len(items):  # most texts with such a substring have it near the beginning
        if _most_frequent(items[:size], min_length) >= min_count:
            return True
        size *= 2
    return _most_frequent(items, min_length) >= min_count


def repeated_substrings(
    text: Items, min_length: int = MIN_LENGTH, min_count: int = MIN_COUNT, *, limit: int = 100
) -> list[RepeatedSubstring]:
    """Return substrings of at least `min_length` items that occur at least `min_count` times, most repetitive first.

    Occurrences may overlap: "aaaa" contains "aa" three times. Only maximal substrings are returned: no longer substring
    occurs as often. Takes linear time with a suffix array (the library pydivsufsort) and its common prefixes.

    Args:
        text: a `str` (by code points), `bytes` or token ids.
        min_length: the least length of the substring.
        min_count: the least number of occurrences, at least 2.
        limit: how many are returned: those with the largest count * length.

    Raises:
        BackendUnavailableError: pydivsufsort is not installed.

    >>> repeated_substrings("no no no no yes", min_length=2, min_count=4)
    [RepeatedSubstring(substring='no ', count=4, start=0)]
    """
    min_length, min_count = _checked(min_length, min_count)
    limit = integer(1, 1_000_000)("limit", limit)
    items = as_array(text)
    if len(items) < min_length + min_count - 1:
        return []
    suffixes, common = _suffix_array(items)
    chosen = heapq.nlargest(
        limit,
        _maximal(items, suffixes, common, min_length, min_count),
        key=lambda one: ((one[2] - one[1]) * one[0], one[0]),
    )
    found = []
    for length, first, end in chosen:
        start = int(suffixes[first:end].min())
        substring: Any = text[start : start + length]
        if not isinstance(substring, (str, bytes)):
            substring = tuple(int(item) for item in substring)
        found.append(RepeatedSubstring(substring, end - first, start))
    return found


def _checked(min_length: int, min_count: int) -> tuple[int, int]:
    return integer(1, MAX_ITEMS)("min_length", min_length), integer(2, MAX_ITEMS)("min_count", min_count)


def _suffix_array(items: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the suffix array and, for each suffix, the length of the prefix that it shares with the next one."""
    try:
        from pydivsufsort import divsufsort, kasai
    except ImportError:
        raise BackendUnavailableError(
            "repeated_substrings needs the library pydivsufsort, which is not installed: "
            "pip install 'lz-penalty[detect]'. paper20 works without it and says whether there are any."
        ) from None
    writable = np.array(items, dtype=items.dtype if items.dtype in (np.uint8, np.uint32) else np.int64)
    suffixes = divsufsort(writable)
    return suffixes, kasai(writable, suffixes)


def _maximal(
    items: npt.NDArray[Any],
    suffixes: npt.NDArray[Any],
    common: npt.NDArray[Any],
    min_length: int,
    min_count: int,
) -> Iterator[tuple[int, int, int]]:
    """Yield (length, first, end): the suffixes from first to end - 1 share a prefix of exactly `length` items.

    These are the inner nodes of the suffix tree. If the same item precedes all of them, the substring can be extended to
    the left, and the node is left out.
    """
    before, is_whole = items[suffixes - 1], suffixes == 0  # no item precedes the whole text
    differ = (before[1:] != before[:-1]) | is_whole[1:] | is_whole[:-1]
    changes = np.concatenate(([0], np.cumsum(differ))).tolist()
    open_nodes = [(0, 0)]  # (length, first), lengths ascending
    for i, length in enumerate(common.tolist()):
        first = i
        while open_nodes[-1][0] > length:
            node, first = open_nodes.pop()
            if node >= min_length and i + 1 - first >= min_count and changes[i] > changes[first]:
                yield node, first, i + 1
        if open_nodes[-1][0] < length:
            open_nodes.append((length, first))


def _most_frequent(items: npt.NDArray[Any], size: int) -> int:
    """Return how often the most frequent substring of this size occurs."""
    if len(items) < size:
        return 0
    names = np.unique(items, return_inverse=True)[1]
    width = 1
    while width < size:  # number longer substrings by the numbers of two shorter ones
        step = min(width, size - width)
        names = np.unique(names[:-step] * len(items) + names[step:], return_inverse=True)[1]
        width += step
    return int(np.bincount(names).max())
