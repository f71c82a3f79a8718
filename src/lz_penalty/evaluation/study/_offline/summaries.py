"""The numbers of a study's report: shares with intervals, harm and differences against no penalty."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lz_penalty.evaluation.study._offline.choice import RULE_KINDS, differ
from lz_penalty.evaluation.study._offline.differences import SEED, Difference, bootstrap, corrected
from lz_penalty.evaluation.study._offline.files import Record
from lz_penalty.evaluation.study._offline.plan import COPIED
from lz_penalty.evaluation.study._offline.settings import NONE
from lz_penalty.evaluation.study._offline.study import GREEDY, MEASURES, Cell, Study
from lz_penalty.evaluation.study.statistics import wilson

__all__ = ["Noise", "Share", "differences", "harm_mean", "harm_share", "noise", "primary", "share", "spread"]

DRAWS = 2_000


@dataclass(frozen=True)
class Share:
    """A mean with its 95 % interval, and how many questions or texts it is from."""

    mean: float
    low: float
    high: float
    count: int


@dataclass(frozen=True)
class Noise:
    """How much two jobs differ that wrote the same greedy answers without a penalty.

    Args:
        model: of both jobs.
        count: the questions that both answered.
        changed: the answers that differ in length or in their 4-grams, of the two jobs that differ most.
        more, less: the most answers that are right only in the later, and only in the earlier of two jobs.
    """

    model: str
    count: int
    changed: int
    more: int
    less: int


def noise(study: Study, task: str) -> list[Noise]:
    """Return how much jobs without a penalty differ, for each model that has several greedy jobs of a task."""
    written: dict[str, list[list[Record]]] = defaultdict(list)
    for cell, rows in study.plain.items():
        if (cell.task, cell.how) == (task, GREEDY) and rows not in written[cell.model]:
            written[cell.model].append(rows)
    found = []
    for model, jobs in written.items():
        pairs = [_compared(one, other) for number, one in enumerate(jobs) for other in jobs[:number]]
        if pairs:
            found.append(Noise(model, len(jobs[0]), *map(max, zip(*pairs, strict=True))))
    return found


def _compared(one: list[Record], other: list[Record]) -> tuple[int, int, int]:
    """Return how many answers differ, and how many are right only in the one and only in the other."""
    before = {row["id"]: row for row in other}
    pairs = [(row, before[row["id"]]) for row in one if row["id"] in before]
    more = sum(a["right"] and not b["right"] for a, b in pairs)
    less = sum(b["right"] and not a["right"] for a, b in pairs)
    return sum(differ(a, b) for a, b in pairs), more, less


def primary(study: Study, task: str) -> str:
    """Return the measure that a task is about: right answers, how much of a copy is right, or near-loops."""
    sources = {one.source for one in study.plan.tasks if one.name == task}
    if sources & {"instructions", "long"}:
        return "near_loop"
    return "fidelity" if sources & set(COPIED) else "right"


def share(study: Study, cell: Cell, measure: str) -> Share | None:
    """Return the mean of a measure in a cell: Wilson's interval for a share, else drawn again; `None` if not measured."""
    values = study.values(cell, measure)
    if not values:
        return None
    mean = sum(values.values()) / len(values)
    shares = measure not in ("tokens", "wasted", "fidelity")
    low, high = wilson(mean, len(values)) if shares else bootstrap(list(values.values()))
    return Share(mean, low, high, len(values))


def spread(study: Study, cell: Cell, measure: str) -> tuple[float, float] | None:
    """Return the mean of a measure and its standard deviation over runs; 0 for one run, `None` if not measured."""
    if not study.values(cell, measure):
        return None
    runs: dict[int, list[float]] = defaultdict(list)
    for row in study.answers[cell]:
        runs[row["run"]].append(MEASURES[measure](row))
    means = [sum(values) / len(values) for values in runs.values()]
    return float(np.mean(means)), float(np.std(means, ddof=1)) if len(means) > 1 else 0.0


def harm_share(rows: Sequence[Record], kinds: Sequence[str] = RULE_KINDS) -> Share | None:
    """Return the share of right tokens that one model loses, the mean over kinds of text; `None` if a kind is missing."""
    return harm_mean([rows], kinds)


def harm_mean(models: Sequence[Sequence[Record]], kinds: Sequence[str] = RULE_KINDS) -> Share | None:
    """Return the share of right tokens lost, the mean over models and kinds of text; `None` if a kind is missing.

    Texts are drawn again for the interval. Models that read equally many texts of a kind get equal draws.
    """
    groups = [[[row for row in rows if row["kind"] == kind] for rows in models] for kind in kinds]
    if not groups or not all(group for of_kind in groups for group in of_kind):
        return None
    rng, means = np.random.default_rng(SEED), np.zeros(DRAWS)
    mean, count, parts = 0.0, 0, len(groups) * len(models)
    for of_kind in groups:
        draws = {size: rng.integers(size, size=(DRAWS, size)) for size in dict.fromkeys(map(len, of_kind))}
        for group in of_kind:
            lost, right = (np.array([row[key] for row in group], dtype=np.float64) for key in ("lost", "right"))
            drawn = draws[len(group)]
            means += lost[drawn].sum(1) / np.maximum(right[drawn].sum(1), 1) / parts
            mean += lost.sum() / max(right.sum(), 1) / parts
        count += max(map(len, of_kind))
    low, high = np.quantile(means, [0.025, 0.975])
    return Share(float(mean), float(low), float(high), count)


def differences(study: Study, task: str, measure: str) -> dict[Any, Difference]:
    """Return the difference of every cell of a task against no penalty, corrected for all of them together."""
    if (task, measure) in study.differences:
        return study.differences[task, measure]
    pairs = {}
    for cell in study.cells(task):
        before = study.values_without(cell, measure)
        after = study.values(cell, measure)
        if cell.penalty != NONE and before and after:
            pairs[cell] = (before, after)
    study.differences[task, measure] = corrected(pairs)
    return study.differences[task, measure]
