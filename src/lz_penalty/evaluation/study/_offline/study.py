"""Read a study: its sweep, and the results of all its jobs from one or more folders."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from lz_penalty.errors import LZPenaltyError
from lz_penalty.evaluation.measures import is_near_loop
from lz_penalty.evaluation.study._offline.choice import best_of_families
from lz_penalty.evaluation.study._offline.differences import Difference
from lz_penalty.evaluation.study._offline.files import RESULT, Record, read_result
from lz_penalty.evaluation.study._offline.plan import BATCH, HARM, RECOMMENDED, TUNING, Plan, Task, jobs, read_plan
from lz_penalty.evaluation.study._offline.results import read_summary, tuned
from lz_penalty.evaluation.study._offline.settings import NONE, canonical
from lz_penalty.evaluation.study.sweep import sweep_data

__all__ = ["MEASURES", "STUDY", "Cell", "Study", "read_study"]

STUDY = "study.toml"  # names the sweep of a study and the folders of its answers
GREEDY = "greedy"

Values = dict[Any, float]  # of questions


class Cell(NamedTuple):
    """One point of a study: `how` is `greedy`, a temperature such as `0.6`, or `recommended`."""

    model: str
    task: str
    how: str
    penalty: str


MEASURES: dict[str, Callable[[Record], float]] = {
    "near_loop": lambda row: float(is_near_loop(row["distinct_4"])),
    "degenerate": lambda row: float(row["degenerate"]),
    "loop": lambda row: float(row["loop"]),
    "capped": lambda row: float(row["capped"]),
    "tokens": lambda row: float(row["tokens"]),
    "wasted": lambda row: float(row["wasted"]),
    "right": lambda row: float(row["right"]),
    "valid": lambda row: float(row["valid"]),
    "fidelity": lambda row: float(row["fidelity"]),
}


@dataclass
class Study:
    """The results of a study.

    Args:
        plan: its sweep.
        answers: the records of each cell.
        plain: for a cell, the answers without a penalty of the same job, if it wrote any. vLLM does not always write the same
            answers twice, so a setting is compared with these.
        harm: for a model and a setting, the records of texts.
        batches: for a model and a setting, the records of timed batches.
        tuning: `{setting: {model: {task or harm: means}}}` on the tuning data.
        machines: for each cell, the machine that wrote its answers. Harm and batches have no sampling.
    """

    plan: Plan
    answers: dict[Cell, list[Record]] = field(default_factory=dict)
    plain: dict[Cell, list[Record]] = field(default_factory=dict)
    harm: dict[tuple[str, str], list[Record]] = field(default_factory=dict)
    batches: dict[tuple[str, str], list[Record]] = field(default_factory=dict)
    tuning: Mapping[str, Any] = field(default_factory=dict)
    machines: dict[Cell, Record] = field(default_factory=dict)

    @cached_property
    def best(self) -> dict[str, str]:
        """The best setting of each family."""
        return best_of_families(self.plan, self.tuning)

    @cached_property
    def differences(self) -> dict[tuple[str, str], dict[Any, Difference]]:
        """The differences of a task in a measure, once they were computed: see `summaries.differences`."""
        return {}

    def values(self, cell: Cell, measure: str) -> Values:
        """Return a measure of each question, the mean over its runs; empty if it was not measured."""
        return _of_questions(self.answers.get(cell, []), measure)

    def values_without(self, cell: Cell, measure: str) -> Values:
        """Return a measure of each question in the answers without a penalty that a cell is compared with."""
        plain = self.answers.get(cell._replace(penalty=NONE), [])
        return _of_questions(self.plain.get(cell, plain), measure)

    def cells(self, task: str, how: str | None = None) -> list[Cell]:
        """Return the measured cells of a task, in the order of the sweep: models, then settings."""
        models = [model.name for model in self.plan.models]
        found = [cell for cell in self.answers if cell.task == task and how in (None, cell.how)]
        return sorted(
            found, key=lambda cell: (models.index(cell.model), _place(cell.how), self.order.index(cell.penalty))
        )

    @cached_property
    def order(self) -> list[str]:
        """The names of all settings of the sweep, without penalty first."""
        named = [name for names in (*self.plan.families.values(), *self.plan.sets.values()) for name in names]
        named += [name for task in self.plan.tasks for name in self.plan.settings_of(task, {})]
        return list(dict.fromkeys([NONE, *map(canonical, named)]))


def _of_questions(rows: list[Record], measure: str) -> Values:
    if not rows or any(key not in rows[0] for key in NEEDED.get(measure, ())):
        return {}
    groups: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        groups[row["id"]].append(MEASURES[measure](row))
    return {name: sum(group) / len(group) for name, group in groups.items()}


NEEDED = {"right": ("right",), "valid": ("valid",), "fidelity": ("fidelity",), "wasted": ("wasted",)}


def read_study(folder: Path) -> Study:
    """Return the study of a folder: that of `study.toml`, or of `sweep.toml` and `answers` that a run wrote."""
    try:
        told = sweep_data(folder / STUDY) if (folder / STUDY).exists() else {"sweep": "sweep.toml"}
        name, places = str(told["sweep"]), [folder / place for place in told.get("answers", ["answers"])]
    except (KeyError, TypeError):
        raise LZPenaltyError(f"{folder / STUDY}: must have `sweep` and `answers`, a list of folders.") from None
    study = Study(read_plan(folder / name if name.endswith(".toml") else name))
    own: list[tuple[Record, list[Record]]] = []
    for place in places:
        replaced: set[tuple[str, str, str]] = set()
        for path in sorted(place.glob(f"*{RESULT}")):
            about, rows = read_result(path)
            if str(about["job"].get("task", "")).startswith(TUNING):
                own.append((about, rows))
            else:
                _add(study, about, rows, replaced)
    _read_tuning(study, own, folder / told["tuning"] if "tuning" in told else None)
    if not (study.answers or study.harm or study.tuning):
        raise LZPenaltyError(f"{folder}: no result of a job; run `lz-penalty eval` first.")
    return study


def _read_tuning(study: Study, own: list[tuple[Record, list[Record]]], summary: Path | None) -> None:
    """Take the study's own tuning results if all are there, and for other settings those of an earlier summary."""
    known = study.order
    earlier = read_summary(summary) if summary is not None else {}
    study.tuning = {name: one for name, one in earlier.items() if name in known}
    asked = {(job.model.name, job.task.name) for job in jobs(study.plan) if job.is_tuning}
    if asked and {(about["model"], about["job"]["task"]) for about, _ in own} == asked:
        study.tuning = {**study.tuning, **tuned(own)}


def _add(study: Study, about: Record, rows: list[Record], replaced: set[tuple[str, str, str]]) -> None:
    """Add the rows of a file. Those of a later folder replace all of a model, task and temperature of earlier folders."""
    task = _task_of(study.plan, about["job"])
    model, known = about["model"], study.order
    if task is None or model not in [one.name for one in study.plan.models]:
        return
    groups: dict[str, list[Record]] = defaultdict(list)
    for row in rows:
        groups[canonical(row["penalty"])].append(row)
    groups = {name: group for name, group in groups.items() if name in known}
    if task.source in (HARM, BATCH):
        place = study.harm if task.source == HARM else study.batches
        place.update({(model, name): group for name, group in groups.items()})
        study.machines.update({Cell(model, task.name, "", name): about["machine"] for name in groups})
        return
    how = _how(about["job"])
    if (model, task.name, how) not in replaced:
        replaced.add((model, task.name, how))
        for cell in [cell for cell in study.answers if cell[:3] == (model, task.name, how)]:
            del study.answers[cell]
            study.plain.pop(cell, None)
    for name, group in groups.items():
        cell = Cell(model, task.name, how, name)
        before = study.answers.get(cell, [])
        both = (
            [*group, *before] if name == NONE else [*before, *group]
        )  # every part has `none`: the table shows the first
        study.answers[cell] = list({(row["id"], row["run"]): row for row in both}.values())
        study.machines[cell] = about["machine"]
        if NONE in groups and name != NONE:
            with_runs = {(row["id"], row["run"]): row for row in [*study.plain.get(cell, []), *groups[NONE]]}
            study.plain[cell] = list(with_runs.values())


def _place(how: str) -> tuple[int, str]:
    """Return where a sampling comes in a table: greedy, temperatures, the recommended one."""
    return ({GREEDY: 0, RECOMMENDED: 2}.get(how, 1), how)


def _how(job: Record) -> str:
    if job.get("recommended"):
        return RECOMMENDED
    return f"{job['temperature']:g}" if job["temperature"] else GREEDY


def _task_of(plan: Plan, job: Record) -> Task | None:
    """Return the task of the sweep that a job belongs to; `None` if it was measured in another way."""
    if job.get("turn", 1) != 1:
        return None
    source = job.get("source") or (HARM if job.get("what") == HARM else Path(job["prompts"]).name.partition(".")[0])
    for task in plan.tasks:
        same = task.source == source and task.part == job["part"] and job.get("task", task.name) == task.name
        if same and not task.name.startswith(TUNING) and task.cap == job.get("cap", task.cap):
            return task
    return None
