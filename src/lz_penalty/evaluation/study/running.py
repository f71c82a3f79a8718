"""Running a sweep with inspect-ai's `eval_set`: what cannot run is named and left out, what is recorded is not run again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

from inspect_ai import Task, eval_set
from inspect_ai.hooks import Hooks, SampleEnd, hooks
from inspect_ai.log import EvalLog, list_eval_logs, read_eval_log_sample_summaries
from inspect_ai.model import Model

from lz_penalty.errors import LZPenaltyError
from lz_penalty.evaluation.devices import usable_device
from lz_penalty.evaluation.study.models import living, local_or_provider, make_judge, on_endpoint, refuses_bad_settings
from lz_penalty.evaluation.study.requests import generate_config, is_lz
from lz_penalty.evaluation.study.sweep import Cell, ModelEntry, Sweep, TaskEntry, cells
from lz_penalty.evaluation.study.tasks import Questions, load_questions, make_task

__all__ = ["Outcome", "Prepared", "log_folder", "prepare", "run_sweep"]

Tick = Callable[[int], None]  # called after every sample with the tokens it took


@dataclass
class Prepared:
    """What can run, and what cannot.

    Args:
        questions: of the tasks that could be loaded.
        cells: those that can run.
        left_out: why the others cannot, each reason once.
    """

    questions: dict[TaskEntry, Questions] = field(default_factory=dict)
    cells: list[Cell] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Outcome:
    """What became of a sweep.

    Args:
        complete: cells that have all their results.
        problems: what was left out or failed, and why.
    """

    complete: int
    problems: list[str]


def log_folder(out: Path) -> Path:
    """Where a study's logs are; `inspect view` reads them."""
    return out / "logs"


def prepare(sweep: Sweep) -> Prepared:
    """Load the tasks, check every model's device and every cell's settings; needs no model."""
    made = Prepared()
    missing = set()
    for entry in sweep.tasks:
        try:
            made.questions[entry] = load_questions(entry)
        except (LZPenaltyError, ImportError) as error:
            missing.add(entry)
            made.left_out.append(f"task {entry.name!r}: {error}")
    absent = set()
    for model in sweep.models:
        try:
            if model.kind == "transformers":
                usable_device(model.device, "device")
        except (LZPenaltyError, ImportError) as error:
            absent.add(model)
            made.left_out.append(f"model {model.name!r}: {error}")
    for cell in cells(sweep):
        if cell.task in missing or cell.model in absent:
            continue
        try:
            generate_config(
                cell.model.kind,
                cell.penalty,
                cell.temperature,
                max_tokens=1,
                top_p=1,
                top_k=0,
                may_end=cell.task.may_end,
            )
            made.cells.append(cell)
        except LZPenaltyError as error:
            reason = f"model {cell.model.name!r}, task {cell.task.name!r}: {error}"
            if reason not in made.left_out:
                made.left_out.append(reason)
    return made


def run_sweep(
    sweep: Sweep, prepared: Prepared, out: Path, *, resume: bool = False, tick: Tick = lambda tokens: None
) -> Outcome:
    """Run all cells that are not recorded in `out` yet.

    Args:
        sweep: what to run.
        prepared: what `prepare` made of it.
        out: the study's folder.
        resume: go on with what is there; without it, a folder with logs is an error.
        tick: told about every sample that is done.
    """
    logs = log_folder(out)
    if not resume and logs.is_dir() and list_eval_logs(str(logs)):
        raise LZPenaltyError(f"{out}: holds results already; --resume goes on with them, or choose another --out.")
    tasks, problems = _with_models(sweep, prepared)
    problems = prepared.left_out + problems
    if not tasks:
        raise LZPenaltyError("nothing can run:\n  " + "\n  ".join(problems))
    done = _run(sweep, tasks, logs, tick)
    failed = [log for log in done if log.status != "success"]
    return Outcome(len(done) - len(failed), problems + [_why(log) for log in failed])


def _with_models(sweep: Sweep, prepared: Prepared) -> tuple[list[Task], list[str]]:
    """Tasks of the cells whose model is there, dealt out to its servers, and what is wrong with the others."""
    tasks: list[Task] = []
    problems: list[str] = []
    for entry in sweep.models:
        mine = [cell for cell in prepared.cells if cell.model == entry]
        if not mine:
            continue
        try:
            models = _models(entry, any(is_lz(cell.penalty) for cell in mine), problems)
        except Exception as error:  # a provider's package, key or file is missing
            problems.append(f"model {entry.name!r}: {error}")
            continue
        for cell, (model, knows_lz) in zip(mine, cycle(models)):
            if is_lz(cell.penalty) and not knows_lz:
                continue
            tasks.append(make_task(cell, prepared.questions[cell.task], sweep, model))
    return tasks, problems


def _models(entry: ModelEntry, lz: bool, problems: list[str]) -> list[tuple[Model, bool]]:
    """The model on each of its servers, and whether they know the LZ penalty."""
    if not entry.endpoints:
        return [(local_or_provider(entry), True)]
    alive, dead = living(entry)
    problems.extend(dead)
    able = [not lz or not entry.probe or refuses_bad_settings(entry, endpoint) for endpoint in alive]
    if any(able) or not lz:
        for endpoint, knows in zip(alive, able):
            if not knows:
                problems.append(_ignores(entry, endpoint) + " It is not used.")
        return [(on_endpoint(entry, endpoint), True) for endpoint, knows in zip(alive, able) if knows]
    problems.extend(_ignores(entry, endpoint) + " Its LZ cells are left out." for endpoint in alive)
    return [(on_endpoint(entry, endpoint), False) for endpoint in alive]


def _ignores(entry: ModelEntry, endpoint: str) -> str:
    return (
        f"model {entry.name!r}: endpoint {endpoint} accepts lz_penalty = -1, so it runs without lz-penalty and would "
        f"ignore the setting; start it as docs/{entry.kind}.md says, or set probe = false."
    )


def _run(sweep: Sweep, tasks: list[Task], logs: Path, tick: Tick) -> list[EvalLog]:
    from inspect_ai._util.error import PrerequisiteError  # has no public name

    servers = sum(max(len(model.endpoints), model.workers) for model in sweep.models)
    logs.mkdir(parents=True, exist_ok=True)
    _Progress.tick = staticmethod(tick)
    try:
        _, done = eval_set(
            tasks,
            log_dir=str(logs),
            model=None,
            model_roles={"grader": make_judge(sweep.judge)} if sweep.judge else None,
            retry_attempts=0,
            retry_immediate=False,
            continue_on_fail=True,  # the other samples of a cell are not lost
            max_tasks=min(2 * servers, len(tasks)),
            log_dir_allow_dirty=True,  # a sweep may grow
            log_buffer=1,  # a killed process loses nothing that was written
            log_model_api=False,
            display="none",
            ctl_server=False,
        )
    except PrerequisiteError as error:
        raise LZPenaltyError(str(error.message)) from None
    finally:
        _Progress.tick = staticmethod(lambda tokens: None)
    if len(done) < len(tasks) or any(log.status == "cancelled" for log in done):
        raise KeyboardInterrupt  # which inspect-ai has kept to itself
    return done


def _why(log: EvalLog) -> str:
    """Why a cell failed: the first sample's error, in one line."""
    metadata = log.eval.metadata or {}
    where = f"model {metadata.get('model')!r}, {log.eval.task}"
    reason = log.error.message if log.error else log.status
    try:
        errors = [sample.error for sample in read_eval_log_sample_summaries(log.location) if sample.error]
    except (OSError, ValueError):
        errors = []
    if errors:  # inspect-ai repeats the whole request before it says what was wrong
        last = errors[0].replace("\\n", "\n").strip().splitlines()[-1]
        reason = f"{len(errors)} samples failed: {last}"
    return f"{where}: {' '.join(reason.split())[-400:]}"


@hooks(name="lz-penalty-progress", description="Progress of `lz-penalty eval`.")
class _Progress(Hooks):
    """Tells the sweep under way about each sample that ends. inspect-ai makes the one instance there is."""

    tick: Tick = staticmethod(lambda tokens: None)

    async def on_sample_end(self, data: SampleEnd) -> None:
        """Count one sample."""
        usage = sum((item.output_tokens for item in data.sample.model_usage.values()), 0)
        type(self).tick(usage)
