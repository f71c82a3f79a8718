"""Read a sweep that vLLM runs in this process, and make its jobs. Nothing runs here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from lz_penalty._checks import boolean, choice, integer, real
from lz_penalty.errors import LZPenaltyError, did_you_mean, show
from lz_penalty.evaluation.study._offline.settings import NONE, TEMPERATURE, canonical, setting
from lz_penalty.evaluation.study.sweep import read_entry, sweep_data

__all__ = [
    "BATCH",
    "COPIED",
    "HARM",
    "LETTERS",
    "SOURCES",
    "Job",
    "Model",
    "Plan",
    "Task",
    "is_offline",
    "jobs",
    "read_plan",
]

HARM, BATCH = "harm", "batch"
LETTERS = "letters"  # asks for a letter 50 to 150 times: a loop that the user wants, and no text to copy
COPIED = ("copies", LETTERS)
SOURCES = (
    *("instructions", "gsm8k_train", "gsm8k_test", "math500", "aime", "gpqa", "humaneval"),
    *(*COPIED, "json", "long", BATCH, HARM),
)
TUNING = "tuning "  # begins the names of the tasks that choose the best of each family
RECOMMENDED = "recommended"
SETTINGS_OF_A_FAMILY = 6
KEYS = ("name", "runner", "speed", "families", "sets", "models", "tasks")


@dataclass(frozen=True)
class Model:
    """A model of the sweep.

    Args:
        name: the name of its folder, and of its results.
        title: its name in the report.
        about: the exact model and its quantisation.
        sha256: of the file that it was converted from.
        length: the most tokens of a prompt and its answer.
        recommended: the sampling that its makers recommend.
    """

    name: str
    title: str = ""
    about: str = ""
    sha256: str = ""
    length: int = 4_096
    recommended: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """A task of the sweep.

    Args:
        name: its name in the report; `tuning ...` for a task that chooses settings.
        source: one of `SOURCES`.
        models: names of models.
        settings: names of settings, `all`, `best`, `best FAMILY`, or a list of `[sets]`.
        temperatures: 0 is greedy; `recommended` is the sampling of the model's makers.
        runs: how often each question is answered.
        runs_per_job: so many of them in one job; all by default.
        parts: the settings are divided among so many jobs, so that several engines can share a large task.
        apart: vLLM's own penalties run in a second job, because they make a whole batch slower.
        part: of the questions: `choose` takes even numbers, `publish` odd ones, `all` takes all.
        samples: at most so many questions.
        cap: the most tokens of an answer.
        top_p, top_k: of the sampling, unless it is the recommended one.
        may_end: whether the model may end before the cap.
        tokens: how many tokens an answer has on average, by model, for the estimate; `cap` for models that it lacks.
    """

    name: str
    source: str
    models: tuple[str, ...]
    settings: tuple[str, ...]
    temperatures: tuple[Any, ...] = (0.0,)
    runs: int = 1
    runs_per_job: int | None = None
    parts: int = 1
    apart: bool = False
    part: str = "all"
    samples: int | None = None
    cap: int = 1_024
    top_p: float = 1.0
    top_k: int = 0
    may_end: bool = True
    tokens: Mapping[str, float] = field(default_factory=dict)

    @property
    def divided(self) -> int:
        """Among how many jobs its settings are divided."""
        return 2 if self.apart else self.parts

    def __hash__(self) -> int:
        return hash((self.name, self.source, self.temperatures))


@dataclass(frozen=True)
class Speed:
    """What the estimate assumes before anything was measured: see `sweeps/real.toml`."""

    tokens_per_second: float = 2_000.0
    step_seconds: float = 0.02
    start_seconds: float = 60.0
    texts_per_second: float = 10.0
    minutes: float = 120.0
    sitting: float = 30.0

    def seconds(self, longest: float, tokens: float) -> float:
        """Return how long an engine writes answers at the same time. The longest of them needs a step for each token.

        >>> Speed(tokens_per_second=1_000, step_seconds=0.01).seconds(longest=200, tokens=5_000)
        7.0
        """
        return longest * self.step_seconds + tokens / self.tokens_per_second


@dataclass(frozen=True)
class Plan:
    """A whole sweep."""

    name: str
    models: tuple[Model, ...]
    tasks: tuple[Task, ...]
    families: Mapping[str, tuple[str, ...]]
    sets: Mapping[str, tuple[str, ...]]
    speed: Speed = Speed()

    def model(self, name: str) -> Model:
        """Return the model with this name."""
        return next(model for model in self.models if model.name == name)

    def family_of(self, name: str) -> str:
        """Return the family of a setting; `other` if it is in none."""
        wanted = canonical(name)
        for family, names in self.families.items():
            if wanted in map(canonical, names):
                return family
        return NONE if name == NONE else "other"

    def settings_of(self, task: Task, best: Mapping[str, str]) -> tuple[str, ...]:
        """Return the names of a task's settings, each once; a family without a best setting has none yet.

        Args:
            task: one of the tasks.
            best: the best setting of each family, so far as it is known.
        """
        found: list[str] = []
        for one in task.settings:
            if one == "all":
                found += [name for names in self.families.values() for name in names]
            elif one == "best":
                found += [best[family] for family in self.families if family in best]
            elif one.startswith("best "):
                found += [best[family] for family in [one.removeprefix("best ")] if family in best]
            else:
                found += self.sets.get(one, (one,))
        return tuple(dict.fromkeys(canonical(name) for name in found))

    def waits_for(self, task: Task, best: Mapping[str, str]) -> list[str]:
        """Return the families whose best setting a task needs and that is not known yet."""
        needed = [name for one in task.settings for name in self._families_of(one)]
        return [family for family in dict.fromkeys(needed) if family not in best]

    def _families_of(self, one: str) -> Sequence[str]:
        if one == "best":
            return list(self.families)
        return [one.removeprefix("best ")] if one.startswith("best ") else []


@dataclass(frozen=True)
class Job:
    """The unit of work: one model, one task, one temperature, some runs and settings. It has one result file.

    Args:
        task: the task.
        model: the model.
        temperature, top_p, top_k: of the sampling.
        recommended: whether the sampling is the recommended one.
        first_run: the number of its first run.
        runs: how many runs.
        number: which of the task's parts it is, from 0 on; 1 for the second job of a task that runs `apart`.
    """

    task: Task
    model: Model
    temperature: float
    top_p: float = 1.0
    top_k: int = 0
    recommended: bool = False
    first_run: int = 0
    runs: int = 1
    number: int = 0

    @property
    def name(self) -> str:
        """Its name and that of its files, such as `qwen15-math-500-t0.6-run2`."""
        task = re.sub(r"[^a-z0-9]+", "-", self.task.name.lower())
        how = "" if self.task.source == HARM else f"-{RECOMMENDED}" if self.recommended else f"-t{self.temperature:g}"
        run = f"-run{self.first_run}" if self.task.runs_per_job else ""
        part = f"-part{self.number}" if self.task.parts > 1 else "-own" if self.number else ""
        return f"{self.model.name}-{task}{how}{run}{part}"

    @property
    def is_tuning(self) -> bool:
        """Whether it chooses settings."""
        return self.task.name.startswith(TUNING)

    def usable(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the settings of the task that this job measures.

        There are no other temperatures if it samples, or times batches. Every part of a greedy task has `none`: its answers
        need not be written again where a penalty is idle, and vLLM does not always write the same answers twice.
        """
        fixed = self.temperature > 0 or self.task.source == BATCH
        usable = [name for name in names if not (fixed and setting(name).temperature is not None)]
        if self.task.apart:
            own = [name for name in usable if setting(name).is_vllms_own == bool(self.number)]
        else:
            own = usable[self.number :: self.task.parts]
        if own and NONE in usable and NONE not in own and not self.temperature:
            own.insert(0, NONE)
        return tuple(own)


def jobs(plan: Plan) -> list[Job]:
    """Return all jobs, the most important first."""
    made = []
    for task in plan.tasks:
        for temperature in task.temperatures:
            for name in task.models:
                model = plan.model(name)
                step = task.runs_per_job or task.runs
                how = _sampling(task, model, temperature)
                for first, number in product(range(0, task.runs, step), range(task.divided)):
                    runs = min(step, task.runs - first)
                    made.append(Job(task, model, **how, first_run=first, runs=runs, number=number))
    return made


def _sampling(task: Task, model: Model, temperature: Any) -> dict[str, Any]:
    if temperature == RECOMMENDED:
        return {"temperature": 0.7, "recommended": True} | dict(model.recommended)
    if temperature == 0:
        return {"temperature": 0.0}
    return {"temperature": float(temperature), "top_p": task.top_p, "top_k": task.top_k}


# ---------------------------------------------------------------- reading


def is_offline(name: str | Path) -> bool:
    """Return whether a sweep runs in this process: its file says `runner = "vllm"`."""
    return sweep_data(name).get("runner") is not None


def read_plan(name: str | Path) -> Plan:
    """Return the sweep in a TOML file, or the one that comes with the package (`real`).

    >>> len(read_plan("real").families), len(read_plan("real").families["paper"])
    (12, 6)
    """
    try:
        return _plan(sweep_data(name))
    except LZPenaltyError as error:
        raise LZPenaltyError(f"sweep {name}: {error}") from None


def _plan(data: Mapping[str, Any]) -> Plan:
    choice("vllm")("runner", data.get("runner"))
    unknown = [key for key in data if key not in KEYS]
    if unknown:
        raise LZPenaltyError(f"{unknown[0]}: unknown; a sweep with a runner has {', '.join(KEYS)}.")
    models = tuple(read_entry(Model, item, f"[[models]] {n}", _CHECKS) for n, item in _listed(data, "models"))
    tasks = tuple(read_entry(Task, item, f"[[tasks]] {n}", _CHECKS) for n, item in _listed(data, "tasks"))
    speed = read_entry(Speed, data.get("speed", {}), "[speed]", dict.fromkeys(Speed.__annotations__, real(1e-3, 1e9)))
    plan = Plan(str(data.get("name")), models, tasks, _lists(data, "families"), _lists(data, "sets"), speed)
    for family, names in plan.families.items():
        if len(names) != SETTINGS_OF_A_FAMILY:
            raise LZPenaltyError(
                f"family {family!r}: has {len(names)} settings; every family has {SETTINGS_OF_A_FAMILY}."
            )
    for task in tasks:
        _check_task(plan, task)
    made = [job.name for job in jobs(plan)]
    twice = [name for name in made if made.count(name) > 1]
    if twice:
        raise LZPenaltyError(f"the job {twice[0]!r} occurs twice; give the tasks other names or temperatures.")
    return plan


def _check_task(plan: Plan, task: Task) -> None:
    known = [model.name for model in plan.models]
    for name in task.models:
        if name not in known:
            raise LZPenaltyError(
                f"task {task.name!r}: unknown model {show(name)}.{did_you_mean(name, known)} Known: {', '.join(known)}."
            )
    if task.apart and task.parts > 1:
        raise LZPenaltyError(f"task {task.name!r}: apart = true works with parts = 1; parts is {task.parts}.")
    for one in task.settings:
        for family in plan._families_of(one):
            if family not in plan.families:
                known_families = ", ".join(plan.families)
                raise LZPenaltyError(f"task {task.name!r}: unknown family {show(family)}. Known: {known_families}.")
    for name in plan.settings_of(task, {}):
        setting(name)


def _listed(data: Mapping[str, Any], key: str) -> list[tuple[int, Any]]:
    given = data.get(key)
    if not isinstance(given, list) or not given:
        raise LZPenaltyError(f"{key}: there must be at least one [[{key}]].")
    return list(enumerate(given, 1))


def _lists(data: Mapping[str, Any], key: str) -> dict[str, tuple[str, ...]]:
    given = data.get(key, {})
    if not isinstance(given, Mapping) or not all(isinstance(names, list) for names in given.values()):
        raise LZPenaltyError(f"[{key}]: must be a table of lists of settings.")
    for names in given.values():
        for name in names:
            setting(name)
    return {name: tuple(names) for name, names in given.items()}


def _names(where: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(one, str) and one for one in value):
        raise LZPenaltyError(f"{where} = {show(value)}: must be a list of names.")
    return tuple(value)


def _temperatures(where: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list) or not value:
        raise LZPenaltyError(f"{where} = {show(value)}: must be a list of numbers, or {RECOMMENDED!r}.")
    return tuple(one if one == RECOMMENDED else real(0, 2)(where, one) for one in value)


def _recommended(where: str, value: Any) -> dict[str, float]:
    if not isinstance(value, Mapping) or not set(value) <= {TEMPERATURE, "top_p", "top_k"}:
        raise LZPenaltyError(f"{where} = {show(value)}: must be a table of temperature, top_p and top_k.")
    return {key: (integer(0, 1_000_000) if key == "top_k" else real(0, 2))(where, one) for key, one in value.items()}


def _tokens(where: str, value: Any) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise LZPenaltyError(f"{where} = {show(value)}: must be a table with a number for each model.")
    return {model: real(1, 1e6)(where, one) for model, one in value.items()}


_CHECKS: dict[str, Any] = {
    "source": choice(*SOURCES),
    "models": _names,
    "settings": _names,
    "temperatures": _temperatures,
    "recommended": _recommended,
    "runs": integer(1, 1_000),
    "runs_per_job": integer(1, 1_000, optional=True),
    "parts": integer(1, 100),
    "apart": boolean,
    "part": choice("all", "choose", "publish"),
    "samples": integer(1, 1_000_000, optional=True),
    "cap": integer(1, 1_000_000),
    "length": integer(1, 10_000_000),
    "top_p": real(0, 1),
    "top_k": integer(0, 1_000_000),
    "may_end": boolean,
    "tokens": _tokens,
}
