"""Write the tables of a study as CSV, and make those of its page as Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lz_penalty.evaluation.study._offline.choice import harm_of, near_loops, of_harm, qualifies
from lz_penalty.evaluation.study._offline.differences import Difference
from lz_penalty.evaluation.study._offline.plan import TUNING
from lz_penalty.evaluation.study._offline.settings import NONE, canonical
from lz_penalty.evaluation.study._offline.study import MEASURES, Cell, Study
from lz_penalty.evaluation.study._offline.summaries import Share, differences, harm_share, primary, share
from lz_penalty.evaluation.study.results import write_table

__all__ = ["changed", "label", "markdown", "percent", "shown_settings", "with_interval", "write_tables"]

DIGITS = 5
HARM_HEAD = ("model", "penalty", "kind", "texts", "tokens", "right", "lost", "low", "high", "bits_per_token")


def write_tables(study: Study, folder: Path) -> None:
    """Write cells.csv, differences.csv, harm.csv, choice.csv and batches.csv."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "cells.csv", *_cells(study))
    _write(folder / "differences.csv", *_differences(study))
    _write(folder / "harm.csv", HARM_HEAD, _harm(study))
    _write(folder / "choice.csv", *_choice(study))
    if study.batches:
        head = ("model", "penalty", "run", "answers", "tokens", "capped", "seconds")
        lines = [
            [*key, *(row[name] for name in head[2:])] for key, rows in sorted(study.batches.items()) for row in rows
        ]
        _write(folder / "batches.csv", head, lines)


def _write(path: Path, head: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
    write_table(path, head, lines, digits=DIGITS)


def _tasks(study: Study) -> list[str]:
    return list(dict.fromkeys(task.name for task in study.plan.tasks))


def _cells(study: Study) -> tuple[list[str], list[list[Any]]]:
    head = ["model", "task", "sampling", "penalty", "family", "questions", "runs", "gpu"]
    for measure in MEASURES:
        head += [measure, f"{measure}_low", f"{measure}_high"]
    lines = []
    for task in _tasks(study):
        for cell in study.cells(task):
            rows = study.answers[cell]
            line: list[Any] = [*cell, study.plan.family_of(cell.penalty), len({row["id"] for row in rows})]
            line += [len({row["run"] for row in rows}), study.machines[cell].get("gpu", "none")]
            for measure in MEASURES:
                found = share(study, cell, measure)
                line += [found.mean, found.low, found.high] if found else [math.nan] * 3
            lines.append(line)
    return head, lines


def _differences(study: Study) -> tuple[list[str], list[list[Any]]]:
    head = ["task", "measure", "model", "sampling", "penalty", "questions", "more", "less"]
    head += ["change", "low", "high", "p", "called"]
    lines = []
    for task in _tasks(study):
        for measure in dict.fromkeys((primary(study, task), "degenerate")):
            for cell, one in differences(study, task, measure).items():
                line = [task, measure, cell.model, cell.how, cell.penalty, one.count, one.more, one.less]
                lines.append([*line, one.mean, one.low, one.high, one.p, one.called])
    return head, lines


def _harm(study: Study) -> list[list[Any]]:
    lines = []
    for (model, name), rows in sorted(study.harm.items()):
        for kind, means in of_harm(rows).items():
            found = harm_share(rows, [kind])
            texts = sum(row["kind"] == kind for row in rows)
            bits = math.nan if means["bits"] is None else means["bits"]
            low, high = (found.low, found.high) if found else (math.nan, math.nan)
            lines.append([model, name, kind, texts, means["tokens"], means["right"], means["lost"], low, high, bits])
    return lines


def _choice(study: Study) -> tuple[list[str], list[list[Any]]]:
    head = ["family", "penalty", "measured", "qualifies", "near_loops", "lost", "best"]
    lines = []
    for family, names in study.plan.families.items():
        for name in map(canonical, names):
            models = study.tuning.get(name)
            if models is None:
                lines.append([family, name, "no", "", math.nan, math.nan, "no"])
                continue
            near = sum(map(near_loops, models.values())) / len(models)
            best = "yes" if study.best.get(family) == name else "no"
            lines.append([family, name, "yes", "yes" if qualifies(models) else "no", near, harm_of(models), best])
    return head, lines


# ---------------------------------------------------------------- Markdown


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]], rule: str = "---:|") -> str:
    """Return a table; the first column is text, the others are numbers unless `rule` says otherwise."""
    rows = ["| " + " | ".join(head) + " |", "|---|" + rule * (len(head) - 1)]
    return "\n".join([*rows, *("| " + " | ".join(line) + " |" for line in lines)])


def label(name: str) -> str:
    """Return how the page writes a setting."""
    return "**guarded**" if name == canonical("guarded") else f"`{name}`" if name != NONE else "none"


def percent(value: float) -> str:
    """Return a share in per cent, with one digit after the point."""
    return f"{100 * value:.1f} %"


def with_interval(one: Share) -> str:
    """Return a share in per cent with its 95 % interval.

    >>> with_interval(Share(0.023, 0.006, 0.08, 87))
    '2.3 % (0.6 to 8.0)'
    """
    return f"{percent(one.mean)} ({100 * one.low:.1f} to {100 * one.high:.1f})"


def changed(one: Difference, scale: float = 100) -> str:
    """Return a difference with its corrected interval, in bold if it is real.

    >>> changed(Difference(0.0, 0.0, 0.0, 1.0, 164, 0, 0))
    '+0.0 (all equal)'
    """
    if not (one.more or one.less):
        return f"{scale * one.mean:+.1f} (all equal)"
    text = f"{scale * one.mean:+.1f} ({scale * one.low:+.1f} to {scale * one.high:+.1f})"
    return f"**{text}**" if one.real else text


def shown_settings(study: Study, cells: Iterable[Cell]) -> list[str]:
    """Return the settings of a table: those that the test tasks ask for, in the order of the sweep, guarded after none."""
    test = [task for task in study.plan.tasks if not task.name.startswith(TUNING)]
    asked = {name for task in test for name in study.plan.settings_of(task, study.best)}
    measured = {cell.penalty for cell in cells}
    every = dict.fromkeys([NONE, canonical("guarded"), *study.order])
    return [name for name in every if name in measured and name in asked]
