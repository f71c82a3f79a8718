"""Paired differences against no penalty, with intervals that are corrected for the number of comparisons.

The words of the report come from here: `corrected` decides which differences are called real.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

__all__ = ["Difference", "bootstrap", "compare", "corrected", "mcnemar", "sign_flip"]

ALPHA = 0.05
DRAWS = 20_000
FLIPS = 9_999
FEW = 12  # different values
MAX_DRAWN = 2_000_000  # values in all draws
SEED = 0
UNCLEAR = "not established"


Values = Mapping[Any, float]  # of questions


@dataclass(frozen=True)
class Difference:
    """A mean difference on the same questions.

    Args:
        mean: with the setting minus without.
        low, high: its interval; at the corrected level after `corrected`.
        p: for no difference; corrected after `corrected`.
        count: questions that both answered.
        more, less: questions with a higher and with a lower value.
        real: whether the difference is established, by the rule of `corrected`; `False` before it.
    """

    mean: float
    low: float
    high: float
    p: float
    count: int
    more: int
    less: int
    real: bool = False

    @property
    def called(self) -> str:
        """The word for it: `higher`, `lower`, or `not established`."""
        return ("higher" if self.mean > 0 else "lower") if self.real else UNCLEAR


def compare(before: Values, after: Values, alpha: float = ALPHA) -> Difference | None:
    """Return the difference on the questions that both have, with its interval; `None` if they share none.

    p is McNemar's exact one if all values are 0 or 1, else that of random flips of signs.

    >>> plain = dict.fromkeys(range(10), 0.0)
    >>> compare(plain, plain | dict.fromkeys(range(8), 1.0)).p
    0.0078125
    """
    differences = _values(before, after)
    if not differences:
        return None
    low, high = bootstrap(differences, alpha)
    more, less = sum(value > 0 for value in differences), sum(value < 0 for value in differences)
    mean = sum(differences) / len(differences)
    return Difference(mean, low, high, _p(before, after), len(differences), more, less)


def _p(before: Values, after: Values) -> float:
    differences = _values(before, after)
    if {*before.values(), *after.values()} <= {0.0, 1.0}:
        return mcnemar(sum(value > 0 for value in differences), sum(value < 0 for value in differences))
    return sign_flip(differences)


def corrected(pairs: Mapping[Any, tuple[Values, Values]]) -> dict[Any, Difference]:
    """Return the differences of several comparisons, corrected by Holm.

    The comparison with the smallest p gets the interval of level 1 - 0.05 / n, the next one 1 - 0.05 / (n - 1), and so on. From
    the first difference that is not real on, all intervals have the same level. A difference is real if its interval and all
    intervals before it exclude zero, and its corrected p is below 0.05.

    Args:
        pairs: for each comparison, the values of questions without and with the setting.
    """
    raw = {key: _p(*pair) for key, pair in pairs.items()}
    still, least, level, found = True, 0.0, ALPHA, {}
    for rank, key in enumerate(sorted(raw, key=lambda key: (raw[key], str(key)))):
        left = len(raw) - rank
        least = max(least, min(1.0, raw[key] * left))
        level = ALPHA / left if still else level
        one = compare(*pairs[key], alpha=level)
        if one is not None:
            still = still and least < ALPHA and (one.low > 0 or one.high < 0)
            found[key] = replace(one, p=least, real=still)
    return {key: found[key] for key in pairs if key in found}


def _values(before: Values, after: Values) -> list[float]:
    return [after[key] - before[key] for key in sorted(before.keys() & after.keys(), key=str)]


def bootstrap(values: Sequence[float], alpha: float = ALPHA) -> tuple[float, float]:
    """Return the interval of a mean of independent values, by drawing them again with a fixed seed.

    >>> bootstrap([1.0, 1.0, 1.0])
    (1.0, 1.0)
    """
    given = np.asarray(values, dtype=np.float64)
    different, counts = np.unique(given, return_counts=True)
    rng = np.random.default_rng(SEED)
    if len(different) <= FEW:  # how often each value is drawn, which is faster than drawing one by one
        means = rng.multinomial(len(given), counts / len(given), size=DRAWS) @ different / len(given)
    else:
        draws = max(1_000, min(DRAWS, MAX_DRAWN // len(given)))
        means = given[rng.integers(len(given), size=(draws, len(given)))].mean(axis=1)
    low, high = np.quantile(means, [alpha / 2, 1 - alpha / 2])
    return float(low), float(high)


def mcnemar(more: int, less: int) -> float:
    """Return McNemar's exact p of so many questions that changed in each direction.

    >>> mcnemar(8, 0), mcnemar(3, 3)
    (0.0078125, 1.0)
    """
    n = more + less
    tail = sum(math.comb(n, k) for k in range(min(more, less) + 1))
    return min(1.0, 2 * tail / 2**n) if n else 1.0


def sign_flip(values: Sequence[float]) -> float:
    """Return the p of a mean difference of zero: how often random signs give a mean that is at least as far from it."""
    given = np.asarray([value for value in values if value], dtype=np.float64)
    if not len(given):
        return 1.0
    flipped = np.random.default_rng(SEED).random((FLIPS, len(given)), dtype=np.float32) < 0.5
    sums = np.abs(given.sum() - 2 * (flipped.astype(np.float32) @ given.astype(np.float32)))
    return (1 + int((sums >= abs(given.sum()) * (1 - 1e-6)).sum())) / (FLIPS + 1)
