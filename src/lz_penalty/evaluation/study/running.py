"""Run a sweep with inspect-ai's `eval_set`, and measure what its penalties cost on human text.

Cells that cannot run are named and left out. Cells that are recorded are not run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

from inspect_ai import Task, eval_set
from inspect_ai.hooks import Hooks, SampleEnd, hooks
from inspect_ai.log import EvalLog, list_eval_logs, read_eval_log_sample_summaries
from inspect_ai.model import Model

from lz_penalty.errors import LZPenaltyError
from lz_penalty.evaluation.loading import load, usable_device
from lz_penalty.evaluation.penalties import is_lz, penalty
from lz_penalty.evaluation.study.models import has_penalty, living, local_or_provider, make_judge, on_endpoint
from lz_penalty.evaluation.study.results import COST_TOKENS, COSTS, Cost, read_costs, write_costs
from lz_penalty.evaluation.study.sweep import Cell, ModelEntry, Sweep, TaskEntry, cells
from lz_penalty.evaluation.study.tasks import Questions, cell_config, load_questions, make_task

__all__ = ["Outcome", "Prepared", "log_folder", "measure_costs", "prepare", "run_sweep"]

Tick = Callable[[int], None]  # called after every sample with its number of tokens


@dataclass
class Prepared:
    """The cells of a sweep that can run, the questions of their tasks, and why other cells cannot run (each reason once)."""

    questions: dict[TaskEntry, Questions] = field(default_factory=dict)
    cells: list[Cell] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @contextmanager
    def noting_errors(self, what: str) -> Iterator[None]:
        """Note an error as the reason why something is left out."""
        try:
            yield
        except (LZPenaltyError, ImportError) as error:
            reason = f"{what}: {error}"
            if reason not in self.left_out:
                self.left_out.append(reason)


class Outcome(NamedTuple):
    """How many cells have all their results, and why the others were left out or failed."""

    complete: int
    problems: list[str]


def log_folder(out: Path) -> Path:
    """Return the folder of a study's logs, which `inspect view` reads."""
    return out / "logs"


def prepare(sweep: Sweep) -> Prepared:
    """Load the tasks, and check every model's device and every cell's settings; loads no model."""
    made = Prepared()
    for entry in sweep.tasks:
        with made.noting_errors(f"task {entry.name!r}"):
            made.questions[entry] = load_questions(entry)
    models = set()
    for model in sweep.models:
        with made.noting_errors(f"model {model.name!r}"):
            if model.kind == "transformers":
                usable_device(model.device, "device")
            models.add(model)
    for cell in cells(sweep):
        if cell.task in made.questions and cell.model in models:
            with made.noting_errors(f"model {cell.model.name!r}, task {cell.task.name!r}"):
                cell_config(cell, sweep.grid)
                made.cells.append(cell)
    return made


def run_sweep(
    sweep: Sweep, prepared: Prepared, out: Path, *, resume: bool = False, tick: Tick = lambda tokens: None
) -> Outcome:
    """Run all cells that are not recorded in `out` yet. Without `resume`, a folder with logs is an error."""
    logs = log_folder(out)
    if not resume and logs.is_dir() and list_eval_logs(str(logs)):
        raise LZPenaltyError(
            f"{out}: contains results already; continue from them with --resume, or choose another --out."
        )
    tasks, problems = _with_models(sweep, prepared)
    problems = prepared.left_out + problems
    if not tasks:
        raise LZPenaltyError("nothing can run:\n  " + "\n  ".join(problems))
    done = _run(sweep, tasks, logs, tick)
    failed = [log for log in done if log.status != "success"]
    return Outcome(len(done) - len(failed), problems + [_why(log) for log in failed])


def measure_costs(sweep: Sweep, out: Path) -> list[str]:
    """Measure the human-text costs that the study's `costs.csv` does not contain yet; return the problems.

    Only local models give every token's probability.
    """
    path, problems = out / COSTS, []
    done = {(cost.model, cost.penalty): cost for cost in read_costs(path)}
    for entry in sweep.models:
        left = [name for name in sweep.grid.penalties if (entry.name, name) not in done]
        if entry.kind != "transformers" or not entry.passages or not left:
            continue
        from lz_penalty import bundled_model
        from lz_penalty.evaluation.bits import human_text_cost

        try:
            loaded = load(entry.model, entry.device, entry.dtype)
        except LZPenaltyError as error:
            problems.append(f"human-text cost, model {entry.name!r}: {error}")
            continue
        texts = bundled_model.passages()[: entry.passages]
        for name in left:
            bits = human_text_cost(loaded, texts, penalty(name), limit=COST_TOKENS)
            done[entry.name, name] = Cost(entry.name, name, bits.mean, bits.low, bits.high)
            write_costs(path, done.values())
    return problems


def _with_models(sweep: Sweep, prepared: Prepared) -> tuple[list[Task], list[str]]:
    """Return the tasks of all cells whose model is available, spread over its servers, and the other models' problems."""
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
    """Return the model on each of its servers, and whether the server has the LZ penalty."""
    if not entry.endpoints:
        return [(local_or_provider(entry), True)]
    alive, dead = living(entry)
    problems.extend(dead)
    able = [not lz or not entry.probe or has_penalty(entry, endpoint) for endpoint in alive]
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
        raise KeyboardInterrupt  # inspect-ai does not raise it
    return done


def _why(log: EvalLog) -> str:
    """Return why a cell failed: the first sample's error, in one line."""
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
    """A hook that reports every finished sample to the running sweep. inspect-ai makes its only instance."""

    tick: Tick = staticmethod(lambda tokens: None)

    async def on_sample_end(self, data: SampleEnd) -> None:
        """Count one sample."""
        usage = sum((item.output_tokens for item in data.sample.model_usage.values()), 0)
        type(self).tick(usage)
