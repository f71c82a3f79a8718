"""Find the period with which a sequence repeats at its end, and the number of copies.

Escalation, detection and explanation use this module. It needs the standard library only and works on any sequence
whose items can be compared.

Fast paths use this fact: let p be the smallest period that has a run r of three copies or more (r >= 2p). Then no other
period q <= r has more copies. Proof: if q has three copies too, both periods hold on a common stretch of at least
p + q items, so their greatest common divisor is a period of it (Fine and Wilf). That divisor must be p, so q is a
multiple of p, and its run ends where p's run ends. A search in ascending order may therefore continue at r + 1, and
finds at most log2(n) runs that count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

__all__ = ["TrailingLoop", "trailing_loop", "trailing_runs"]

MIN_COPIES = 3  # a run of this many copies counts as a loop (spec, section 3)


class TrailingLoop(NamedTuple):
    """The end of a sequence that repeats: the last `run` items equal the items one `period` before them."""

    period: int
    run: int

    @property
    def copies(self) -> float:
        """The number of copies of the unit at the end: a real number, not rounded down."""
        return 1 + self.run / self.period

    @property
    def length(self) -> int:
        """The number of items in the run, including its first copy."""
        return self.period + self.run


def trailing_runs(items: Sequence[Any]) -> list[int]:
    """Return, for every period `p`, the number of trailing items that equal the item `p` before them.

    The definition, which takes quadratic time:

        run[p] = 0
        while run[p] + p < n and items[-1 - run[p]] == items[-1 - run[p] - p]:
            run[p] += 1

    This function takes linear time: `run` is the Z-function of the reversed sequence. `run[0]` is `n`, because every
    item equals itself.

    >>> trailing_runs([9, 1, 2, 1, 2, 1])
    [6, 0, 3, 0, 1, 0]
    """
    newest_first = list(reversed(items))
    n = len(newest_first)
    run = [0] * n
    if n:
        run[0] = n
    left = right = 0  # newest_first[left:right] is the rightmost stretch that is known to equal a prefix
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
    """Return the period with the most copies at the end of `items`, or `None`. Ties go to the smallest period.

    Args:
        items: the sequence; only its last `loop_window` items count.
        loop_window: `None` means all items.
        min_copies: how many copies the period must have.

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
        # Compare fractions: the copies of two periods may differ by less than a float can represent.
        if period and (best is None or run * best.period > best.run * period):
            best = TrailingLoop(period, run)
    return best if best is not None and best.copies >= min_copies else None
