"""Load the questions of a task, with their solver and scorers, and make one inspect-ai task per cell."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from inspect_ai import Epochs, Task
from inspect_ai.dataset import Dataset, MemoryDataset, Sample
from inspect_ai.model import GenerateConfig, Model
from inspect_ai.scorer import Scorer, choice, match
from inspect_ai.solver import Generate, Solver, TaskState, chain, generate, multiple_choice, prompt_template, solver
from inspect_ai.util import registry_create

from lz_penalty import bundled_model
from lz_penalty._files import read_text
from lz_penalty.bundled_model import problems
from lz_penalty.errors import LZPenaltyError, show
from lz_penalty.evaluation.study.requests import generate_config
from lz_penalty.evaluation.study.scorers import copy_fidelity, problem_accuracy, repetition
from lz_penalty.evaluation.study.sweep import Cell, Grid, Sweep, TaskEntry

__all__ = ["Questions", "cell_config", "load_questions", "make_task"]

MAX_FILE = 256 * 2**20  # bytes
PROBLEM_SEED = 1
ASK = (
    "Solve the following problem step by step. The last line of your response should be of the form "
    '"ANSWER: $ANSWER" (without quotes) where $ANSWER is the answer to the problem.\n\n{prompt}'
)


class Questions(NamedTuple):
    """A task without the settings of a cell; repetition is always scored too."""

    dataset: Dataset
    solver: Solver
    scorers: list[Scorer]
    version: int | str = 0


def load_questions(entry: TaskEntry) -> Questions:
    """Return the samples of a task with their solver and scorers; one clear error if they cannot be loaded."""
    made = _load(entry.source)
    if entry.samples is None:
        return made
    if entry.samples > len(made.dataset):
        raise LZPenaltyError(f"task {entry.name!r}: samples = {entry.samples}, but there are {len(made.dataset)}.")
    return made._replace(dataset=made.dataset[: entry.samples])


def cell_config(cell: Cell, grid: Grid) -> GenerateConfig:
    """Return inspect-ai's settings of the cell's requests; raise an error if its model lacks something that they need."""
    return generate_config(
        cell.model.kind,
        cell.penalty,
        cell.temperature,
        max_tokens=cell.max_tokens(grid),
        top_p=grid.top_p,
        top_k=grid.top_k,
        may_end=cell.task.may_end,
    )


def make_task(cell: Cell, questions: Questions, sweep: Sweep, model: Model) -> Task:
    """Return one cell as a task of inspect-ai; its runs are epochs, each with its own seed."""
    return Task(
        name=cell.name,
        dataset=questions.dataset,
        solver=seeded(questions.solver, sweep.grid.seed),
        scorer=[*questions.scorers, repetition(judge=sweep.judge is not None)],
        config=cell_config(cell, sweep.grid),
        model=model,
        epochs=Epochs(cell.runs(sweep.grid)),
        version=questions.version,
        metadata={
            "study": sweep.name,
            "model": cell.model.name,
            "task": cell.task.name,
            "penalty": cell.penalty,
            "temperature": cell.temperature,
            "price": list(cell.model.price),
        },
    )


@solver
def seeded(inner: Solver, seed: int) -> Solver:
    """Give each run of a solver its seed: `seed`, `seed + 1`, ... All samples of a run share it."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        async def with_seed(state: TaskState, *args: Any, **settings: Any) -> TaskState:
            return await generate(state, *args, **settings, seed=seed + state.epoch - 1)

        return await inner(state, with_seed)

    return solve


# ---------------------------------------------------------------- sources


def _problems() -> Questions:
    made = problems.generate(seed=PROBLEM_SEED, n=1_000, split="heldout")
    samples = [
        Sample(id=f"problem-{number}", input=problems.prompt(problem), target=problem.answer)
        for number, problem in enumerate(made)
    ]
    return Questions(MemoryDataset(samples, "problems"), generate(), [problem_accuracy()])


def _prompts() -> Questions:
    samples = [Sample(id=f"prompt-{number}", input=text) for number, text in enumerate(bundled_model.prompts())]
    return Questions(MemoryDataset(samples, "prompts"), generate(), [])


def _copying() -> Questions:
    from lz_penalty.evaluation.copying import copy_tasks

    samples = [
        Sample(id=f"copy-{number}-{item.kind}", input=item.prompt, target=item.expected)
        for number, item in enumerate(copy_tasks())
    ]
    return Questions(MemoryDataset(samples, "copying"), generate(), [copy_fidelity()])


BUNDLED: dict[str, Callable[[], Questions]] = {"problems": _problems, "prompts": _prompts, "copying": _copying}


def _load(source: str) -> Questions:
    if source in BUNDLED:
        return BUNDLED[source]()
    if source.startswith("file:"):
        return _file(Path(source.removeprefix("file:")))
    if "/" in source:
        return _registered(source)
    known = ", ".join([*BUNDLED, "file:PATH.jsonl", "inspect_evals/NAME"])
    raise LZPenaltyError(f"source {show(source)}: unknown. Known: {known}.")


def _registered(source: str) -> Questions:
    """Return a registered task of another package, such as inspect-evals."""
    try:
        task = registry_create("task", source)
    except Exception as error:  # of any kind: the task may download its dataset
        raise LZPenaltyError(
            f"source {source!r}: cannot be loaded ({type(error).__name__}: {error}). Without a hub, save its questions as "
            "file:PATH.jsonl."
        ) from error
    scorers = task.scorer if isinstance(task.scorer, list) else [task.scorer] if task.scorer else []
    return Questions(task.dataset, task.solver, list(scorers), task.version)


def _file(path: Path) -> Questions:
    """Return questions from JSON lines with `question`, `answer` and, for multiple choice, `choices`."""
    try:
        lines = read_text(path, MAX_FILE).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LZPenaltyError(f"file:{path}: cannot be read ({error}).") from None
    samples = [_sample(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not samples:
        raise LZPenaltyError(f"file:{path}: contains no question.")
    chosen = [sample.choices is not None for sample in samples]
    if any(chosen) != all(chosen):
        raise LZPenaltyError(f"file:{path}: either all questions have choices or none.")
    dataset = MemoryDataset(samples, path.stem)
    if all(chosen):
        return Questions(dataset, chain(multiple_choice(cot=True)), [choice()])
    return Questions(dataset, chain(prompt_template(ASK), generate()), [match(numeric=True)])


def _sample(path: Path, number: int, line: str) -> Sample:
    form = '{"question": "...", "answer": "..."} and perhaps "id" and "choices": ["...", ...]'
    try:
        data = json.loads(line)
        question, answer, choices = data["question"], data["answer"], data.get("choices")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise LZPenaltyError(f"file:{path}, line {number}: must be {form}; got {show(line)}.") from None
    target = str(answer)
    if choices is not None:
        if not isinstance(choices, list) or target not in map(str, choices):
            raise LZPenaltyError(f"file:{path}, line {number}: the answer must be one of the choices.")
        choices = [str(item) for item in choices]
        target = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[choices.index(target)]
    return Sample(id=str(data.get("id", number)), input=str(question), target=target, choices=choices)
