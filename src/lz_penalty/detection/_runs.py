"""Find all maximal runs of a sequence in O(n log n) comparisons, without hashing. Compiled if Numba is installed.

A run is a maximal stretch with s[i] == s[i - p]. Periods are searched in scales [first, last]. A run with a period of
the scale that is long enough to count contains one of the anchors 0, step, 2 * step, ..., so it is enough to compute
for each anchor `a` and period p

    forward[p] = how far s[a:] equals s[a + p:]              (Z-function)
    back[p]    = how far s[:a] equals s[:a + p], backwards   (not needed if forward alone shows two copies)

The stretch from a - back[p] to a + p + forward[p] has period p. Both are computed in a window of a few times `last` items
around the anchor. Only a stretch of at least two copies that touches the window's edge is extended further, once.

A multiple q of a primitive period p gives the same stretch. Conversely, if two periods p < q belong to the same stretch
of 2q >= p + q items, their greatest common divisor is a period too (Fine and Wilf), so q is a multiple of p. A stretch
that was already seen at this anchor with a smaller period is therefore not primitive.
"""

from __future__ import annotations

from typing import Any

import numpy as np

try:
    from lz_penalty.kernels._compiling import compiled
except ImportError:  # no Numba
    COMPILED = False
else:
    COMPILED = True

__all__ = ["COMPILED", "find_runs"]


def _compiled(function: Any) -> Any:
    return compiled(function) if COMPILED else function


def find_runs(items: np.ndarray, min_copies: float, min_length: int) -> list[tuple[int, int, int]]:
    """Return (start, period, end) of every run with its smallest period, in no particular order.

    Args:
        items: one-dimensional, of any integer type.
        min_copies: the least (end - start) / period; at least 2.
        min_length: the least end - start.
    """
    largest = min(len(items), int(len(items) / min_copies) + 1)
    work = np.zeros((4, largest + 2), dtype=np.int64)
    if COMPILED:
        kind = items.dtype if items.dtype in (np.uint8, np.uint32) else np.int64  # each type is compiled separately
        items = np.ascontiguousarray(items, dtype=kind).view()
        items.flags.writeable = False
        return _find_runs(items, min_copies, min_length, largest, *work)
    return _find_runs(items.tolist(), min_copies, min_length, largest, *work.tolist())


@_compiled
def _find_runs(s, min_copies, min_length, largest, forward, back, own, ends):
    found = [(0, 0, 0)]
    found.clear()
    first, last = 1, max(1, int(min_length / min_copies))
    while first <= largest:
        last = min(last, largest)
        # The step between anchors: by how much the shortest run that counts exceeds two copies (or one copy).
        one_sided = two_sided = len(s)
        for period in range(first, last + 1):
            least = max(int(min_copies * period), min_length)
            one_sided = min(one_sided, least - 2 * period + 1)
            two_sided = min(two_sided, least - period + 1)
        backwards = 3 * one_sided < two_sided  # searching backwards too takes three times as long per anchor
        step = two_sided if backwards else one_sided
        _scan(s, first, last, step, backwards, min_copies, min_length, forward, back, own, ends, found)
        first, last = last + 1, 2 * (last + 1)
    return found


@_compiled
def _scan(s, first, last, step, backwards, min_copies, min_length, forward, back, own, ends, found):
    """Find the runs of one scale: those with a period from first to last."""
    n = len(s)
    seen = [(0, 0)]
    for a in range(0, n - first + 1, step):
        low, high = a, min(n, a + 2 * last)
        periods = min(last, high - a)
        if backwards:
            low = max(0, a - min(step, last))  # the first anchor in a run is less than a step from its start
            _match_back(s, low, a, periods, own, back)
        seen.clear()
        left = right = a  # s[left:right] is the rightmost stretch that is known to equal a prefix of s[a:]
        for period in range(1, periods + 1):
            i = a + period
            if i >= right and not backwards and (i >= n or s[i] != s[a]):  # the usual case in ordinary text
                forward[period] = 0
                continue
            length = min(right - i, forward[i - left]) if i < right else 0
            while i + length < high and s[a + length] == s[i + length]:
                length += 1
            if i + length > right:
                left, right = i, i + length
            forward[period] = length
            before = back[period] if backwards else 0
            if before + length < period:
                continue
            begin, end = a - before, i + length
            if (begin, end) in seen:
                continue
            seen.append((begin, end))
            if period >= first and i > ends[period]:
                _follow(s, period, begin, end, min_copies, min_length, ends, found)
            if begin == low and end == high:  # all larger periods of the window are multiples
                break


@_compiled
def _match_back(s, low, a, periods, own, back):
    """Set back[p] for p = 1 .. periods to how many items at the ends of s[low:a] and s[low:a + p] are equal."""
    m = a - low
    left = right = 0
    for i in range(1, m):  # own[i]: how many items at the ends of s[low:a] and s[low:a - i] are equal
        length = 0
        if i < right:
            length = min(right - i, own[i - left])
        while i + length < m and s[a - 1 - length] == s[a - 1 - i - length]:
            length += 1
        if i + length > right:
            left, right = i, i + length
        own[i] = length
    own[0] = m
    left = right = 0
    for i in range(periods):
        newest = a + periods - 1 - i
        length = 0
        if i < right:
            length = min(right - i, own[i - left])
        while length < m and s[a - 1 - length] == s[newest - length]:
            length += 1
        if i + length > right:
            left, right = i, i + length
        back[periods - i] = length


@_compiled
def _follow(s, period, begin, end, min_copies, min_length, ends, found):
    """Extend a stretch to its run, store where the last run of this period ends, and keep the run if it counts."""
    while begin > 0 and s[begin - 1] == s[begin - 1 + period]:
        begin -= 1
    while end < len(s) and s[end] == s[end - period]:
        end += 1
    ends[period] = end
    if end - begin >= min_length and (end - begin) / period >= min_copies:
        found.append((begin, period, end))
