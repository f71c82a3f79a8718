"""What the penalty adds to a step, from a run in which every second block of steps is without it."""

from __future__ import annotations

import itertools
import statistics
from typing import Any

import numpy as np

BLOCK = 12  # steps
UNSETTLED = 3  # at the beginning of a block: what was left out is made up for


def settled(calm: np.ndarray) -> np.ndarray:
    """Which of the calm steps come after some that were."""
    later = calm.copy()
    for before in range(1, UNSETTLED + 1):
        later[before:] &= calm[:-before]
    later[:UNSETTLED] = False
    return later


def in_blocks(begin_ns: np.ndarray, changed: np.ndarray) -> dict[str, Any]:
    """The step time without the penalty, what it added in each block against those before and behind, and with it.

    With it: the median over the blocks added, since the machine pauses now and then; a rare pause of the penalty's own would
    not be seen either.
    """
    edges = [*np.flatnonzero(changed).tolist(), len(changed)]
    quiet = max(itertools.pairwise(edges), key=lambda pair: pair[1] - pair[0])  # nobody comes or goes
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
