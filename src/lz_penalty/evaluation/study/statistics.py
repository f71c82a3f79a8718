"""Compute means with their spread over runs and intervals over samples, and paired tests."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import numpy as np

from lz_penalty.evaluation.penalties import family, strength
from lz_penalty.evaluation.study.results import Row

__all__ = ["BASELINE", "Measured", "Summary", "summaries", "was_judged", "wilson"]

BASELINE = "none"
RESAMPLES = 9_999
Z = 1.959964  # of a 95 % interval
MEANS = ("exact", "loop", "judged", "onset", "wasted", "tokens", "capped")  # of the rows' values
Key = tuple[str, str, str, float]  # model, task, penalty, temperature
Measure = Callable[[Row], float]
ACCURACY: Measure = attrgetter("correct")


@dataclass(frozen=True)
class Measured:
    """A share in one cell, and its change against no penalty on the same samples.

    Args:
        mean: over samples and runs.
        sd: of the runs' means; 0 for one run.
        low, high: 95 % interval (Wilson), which counts each sample once for any number of runs.
        change: mean minus the mean without a penalty at the same temperature.
        p: of the paired permutation test for no change, corrected by Holm over the task's cells.
    """

    mean: float = math.nan
    sd: float = math.nan
    low: float = math.nan
    high: float = math.nan
    change: float = math.nan
    p: float = math.nan


@dataclass(frozen=True)
class Summary:
    """The numbers of one cell."""

    model: str
    task: str
    penalty: str
    temperature: float
    samples: int
    runs: int
    accuracy: Measured
    repeats: Measured
    exact: float
    loop: float
    judged: float
    onset: float
    wasted: float
    tokens: float
    capped: float


def was_judged(rows: Iterable[Row]) -> bool:
    """Return whether a judge was asked; the few outputs without a verdict are then left out."""
    return any(not math.isnan(row.judged) for row in rows)


def summaries(rows: Sequence[Row]) -> list[Summary]:
    """Return every cell's numbers, in the order of model, task, temperature and penalty.

    `repeats` is the measure `dual` if a judge was asked, else `degenerate`.
    """
    repeats: Measure = attrgetter("dual" if was_judged(rows) else "degenerate")
    groups: dict[Key, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.model, row.task, row.penalty, row.temperature].append(row)
    found = {key: _summary(key, group, repeats) for key, group in groups.items()}
    _compare(found, groups, "accuracy", ACCURACY)
    _compare(found, groups, "repeats", repeats)
    return sorted(found.values(), key=lambda item: (item.model, item.task, item.temperature, _order(item.penalty)))


def _order(penalty: str) -> tuple[bool, str, float]:
    value = strength(penalty)
    return penalty != BASELINE, family(penalty), 0.0 if math.isnan(value) else value


def _summary(key: Key, group: list[Row], repeats: Measure) -> Summary:
    means: dict[str, Any] = {name: _mean(getattr(row, name) for row in group) for name in MEANS}
    return Summary(
        *key,
        samples=len({row.sample for row in group}),
        runs=len({row.run for row in group}),
        accuracy=_measured(group, ACCURACY),
        repeats=_measured(group, repeats),
        **means,
    )


def _measured(group: list[Row], measure: Measure) -> Measured:
    mean = _mean(measure(row) for row in group)
    if math.isnan(mean):
        return Measured()
    runs = list(_means(group, measure, "run").values())
    low, high = wilson(mean, len({row.sample for row in group}))
    return Measured(mean, float(np.std(runs, ddof=1)) if len(runs) > 1 else 0.0, low, high)


def wilson(share: float, count: int) -> tuple[float, float]:
    """Return the 95 % interval of a share of `count` independent samples.

    >>> [round(end, 3) for end in wilson(0.0, 24)]
    [0.0, 0.138]
    """
    middle = (share + Z * Z / (2 * count)) / (1 + Z * Z / count)
    half = Z / (1 + Z * Z / count) * math.sqrt(share * (1 - share) / count + Z * Z / (4 * count * count))
    return max(0.0, middle - half), min(1.0, middle + half)


# ---------------------------------------------------------------- paired tests


def _compare(found: dict[Key, Summary], groups: dict[Key, list[Row]], name: str, measure: Measure) -> None:
    """Set change and p of one measure, in place."""
    tested: dict[tuple[str, str], dict[Key, float]] = defaultdict(dict)
    for key, group in groups.items():
        baseline = groups.get((key[0], key[1], BASELINE, key[3]))
        if baseline is None or key[2] == BASELINE or math.isnan(getattr(found[key], name).mean):
            continue
        before, after = (_means(rows, measure, "sample") for rows in (baseline, group))
        differences = [after[sample] - before[sample] for sample in sorted(before.keys() & after.keys())]
        difference = np.array([value for value in differences if not math.isnan(value)])
        if not len(difference):
            continue
        changed = replace(getattr(found[key], name), change=float(difference.mean()))
        found[key] = replace(found[key], **{name: changed})
        tested[key[:2]][key] = _permutation(difference)
    for raw in tested.values():
        for key, p in _holm(raw).items():
            found[key] = replace(found[key], **{name: replace(getattr(found[key], name), p=p)})


def _permutation(difference: np.ndarray) -> float:
    """Return the two-sided p of a mean difference of 0; signs are flipped at random with a fixed seed."""
    if len(difference) < 2 or not difference.any():
        return 1.0
    from scipy.stats import permutation_test

    return float(
        permutation_test(
            (difference,),
            lambda values, axis: values.mean(axis=axis),
            permutation_type="samples",
            vectorized=True,
            n_resamples=RESAMPLES,
            rng=np.random.default_rng(0),
        ).pvalue
    )


def _holm(raw: dict[Key, float]) -> dict[Key, float]:
    """Return p values corrected for their number."""
    made, least = {}, 0.0
    for rank, (key, p) in enumerate(sorted(raw.items(), key=lambda item: (item[1], item[0]))):
        least = max(least, min(1.0, p * (len(raw) - rank)))
        made[key] = least
    return made


def _means(group: list[Row], measure: Measure, each: str) -> dict[Any, float]:
    """Return the mean of each run, or of each sample."""
    values: dict[Any, list[float]] = defaultdict(list)
    for row in group:
        values[getattr(row, each)].append(measure(row))
    return {one: _mean(given) for one, given in values.items()}


def _mean(values: Iterable[float]) -> float:
    given = [value for value in values if not math.isnan(value)]
    return sum(given) / len(given) if given else math.nan
