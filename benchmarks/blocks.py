"""Compute what the penalty adds to a step, from a run that leaves the penalty out in every second block of steps."""

from __future__ import annotations

import itertools
import statistics
from typing import Any

import numpy as np

BLOCK = 12  # steps
UNSETTLED = 3  # steps at the beginning of a block that do not count: they make up for skipped work


def settled(calm: np.ndarray) -> np.ndarray:
    """Mark the calm steps that follow `UNSETTLED` calm steps."""
    later = calm.copy()
    for before in range(1, UNSETTLED + 1):
        later[before:] &= calm[:-before]
    later[:UNSETTLED] = False
    return later


def in_blocks(begin_ns: np.ndarray, changed: np.ndarray) -> dict[str, Any]:
    """Return the step time without and with the penalty, and what the penalty added in each block.

    A block is compared with the blocks before and after it. The time with the penalty adds the median over the blocks, so
    that a pause of the machine does not count; a rare pause of the penalty itself would not count either.
    """
    edges = [*np.flatnonzero(changed).tolist(), len(changed)]
    quiet = max(itertools.pairwise(edges), key=lambda pair: pair[1] - pair[0])  # no request arrives or leaves
    steps = np.diff(begin_ns[slice(*quiet)]) / 1e6
    times = [
        float(np.median(steps[start + UNSETTLED : start + BLOCK])) for start in range(0, len(steps) - BLOCK + 1, BLOCK)
    ]
    pairs = [(times[i], (times[i - 1] + times[i + 1]) / 2) for i in range(2, len(times) - 1, 2)]
    added = [with_it - without for with_it, without in pairs]
    without_ms = statistics.median(without for _, without in pairs)
    return {
        "step_ms": without_ms + statistics.median(added),
        "without_ms": without_ms,
        "added_us": [round(one * 1e3, 1) for one in added],
    }
