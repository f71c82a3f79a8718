"""The one finder of trailing runs and periods.

Escalation, detection and explanation all ask the same question: with which period does this sequence
repeat at its end, and how often? Standard library only; works on any sequence whose items compare equal.

A fact that fast paths use: take the smallest period p that has a run r of three copies or more (r >= 2p). No other
period q <= r can have more copies. For if q has three copies too, both periods hold on a common stretch of at least
p + q items, so their greatest common divisor is a period of it (Fine and Wilf), which must be p: q is a multiple of
p, and its run ends where p's ends. So a search in ascending order may go on at r + 1, and finds at most log2(n)
runs that count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

__all__ = ["TrailingLoop", "trailing_loop", "trailing_runs"]

MIN_COPIES = 3  # copies from which a run counts as a loop (spec, section 3)


class TrailingLoop(NamedTuple):
    """A sequence's end repeats with this period; `run` trailing items equal the item one period before."""

    period: int
    run: int

    @property
    def copies(self) -> float:
        """How many copies of the unit stand at the end: a real number, not floored."""
        return 1 + self.run / self.period

    @property
    def length(self) -> int:
        """Items that belong to the run, its first copy included."""
        return self.period + self.run


def trailing_runs(items: Sequence[Any]) -> list[int]:
    """For every period `p` the number of trailing items that equal the item `p` before them.

    The definition, which takes quadratic time:

        run[p] = 0
        while run[p] + p < n and items[-1 - run[p]] == items[-1 - run[p] - p]:
            run[p] += 1

    Computed here in linear time: `run` is the Z-function of the reversed sequence. `run[0]` is `n` (every
    item equals itself).

    >>> trailing_runs([9, 1, 2, 1, 2, 1])
    [6, 0, 3, 0, 1, 0]
    """
    newest_first = list(reversed(items))
    n = len(newest_first)
    run = [0] * n
    if n:
        run[0] = n
    left = right = 0  # newest_first[left:right] is the rightmost stretch known to equal a prefix
    for p in range(1, n):
        length = min(right - p, run[p - left]) if p < right else 0
        while p + length < n and newest_first[length] == newest_first[p + length]:
            length += 1
        run[p] = length
        if p + length > right:
            left, right = p, p + length
    return run


def trailing_loop(
    items: Sequence[Any], loop_window: int | None = None, *, min_copies: float = MIN_COPIES
) -> TrailingLoop | None:
    """The period with the most copies at the end of `items`, ties to the smallest period.

    Args:
        items: the sequence; only its last `loop_window` items count.
        loop_window: `None` looks at all of them.
        min_copies: `None` is returned when no period has this many copies.

    >>> trailing_loop([7, 7, 7, 7])
    TrailingLoop(period=1, run=3)
    >>> trailing_loop([5, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1]).copies
    3.3333333333333335
    >>> trailing_loop([1, 2, 1, 2]) is None
    True
    """
    if loop_window is not None:
        items = items[max(0, len(items) - loop_window) :]
    best: TrailingLoop | None = None
    for period, run in enumerate(trailing_runs(items)):
        # Compared as fractions: copies of two periods may differ by less than a float can show.
        if period and (best is None or run * best.period > best.run * period):
            best = TrailingLoop(period, run)
    return best if best is not None and best.copies >= min_copies else None
