"""Estimate what the jobs of a sweep take: answers, tokens, and minutes of one engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lz_penalty.evaluation.study._offline.plan import BATCH, HARM, Job, Plan
from lz_penalty.evaluation.study._offline.questions import data_problem, questions
from lz_penalty.evaluation.study._offline.results import Folder
from lz_penalty.evaluation.study._offline.settings import setting

__all__ = ["Estimate", "estimates", "model_problem"]

TEXTS_OF_HARM = 93  # texts of one part
WAITS = "waits for tuning"
BATCH_SECONDS_PER_TOKEN = 0.006  # of a step; a batch takes as many steps as its longest answer has tokens


@dataclass(frozen=True)
class Estimate:
    """What a job takes.

    Args:
        job: the job.
        settings: how many settings it has; the best of a family that is not known yet counts as one.
        answers: how many answers it writes, or how many texts it reads.
        tokens: how many tokens it writes.
        seconds: of one engine, without its start.
        sitting: in which sitting it would run, counted from 1.
        state: `done`, `waits for tuning`, why it cannot run here, or empty.
    """

    job: Job
    settings: int
    answers: int
    tokens: float
    seconds: float
    sitting: int = 0
    state: str = ""


def model_problem(job: Job, models: Path) -> str | None:
    """Return why a job's model cannot be loaded here; `None` if it can."""
    folder = models / job.model.name
    if (folder / "config.json").is_file():
        return None
    return f"model {job.model.name!r} needs {folder} in Hugging Face's layout ({job.model.about})."


def estimates(
    plan: Plan, given: Sequence[Job], folder: Folder, data: Path, models: Path, limit: int | None, minutes: float
) -> list[Estimate]:
    """Return the estimates of jobs; `minutes` is the length of a sitting.

    The starts of engines are part of a sitting: one for each model in it.
    """
    best, speeds = folder.best(plan), folder.speeds()
    found, used, sitting, started = list[Estimate](), 0.0, 1, set[str]()
    for job in given:
        one = _estimate(plan, job, best, speeds, folder, data, models, limit)
        if one.state and one.state != WAITS:
            found.append(one)
            continue
        start = 0.0 if job.model.name in started else plan.speed.start_seconds
        if used and used + start + one.seconds > 60 * minutes:
            sitting, used, started = sitting + 1, 0.0, set()
            start = plan.speed.start_seconds
        used, started = used + start + one.seconds, started | {job.model.name}
        found.append(replace(one, sitting=sitting))
    return found


def _estimate(
    plan: Plan,
    job: Job,
    best: Mapping[str, str],
    speeds: Mapping[str, float],
    folder: Folder,
    data: Path,
    models: Path,
    limit: int | None,
) -> Estimate:
    waits = plan.waits_for(job.task, best)
    names = folder.settings_of(plan, job)
    count = len(names) + -(-len(waits) // job.task.parts)
    written = sum(setting(name).stop is None for name in names) + count - len(names)
    problem = data_problem(job.task, data) or model_problem(job, models)
    state = "done" if folder.is_done(job) or (job.is_tuning and not names) else problem or (WAITS if waits else "")
    if job.task.source == HARM:
        texts = min(TEXTS_OF_HARM, limit or TEXTS_OF_HARM)
        return Estimate(job, count, texts * count, 0.0, texts * count / plan.speed.texts_per_second, state=state)
    asked = 0 if data_problem(job.task, data) else len(questions(job.task, data)[:limit])
    answers = asked * written * job.runs
    length = min(job.task.tokens.get(job.model.name, job.task.cap), job.task.cap)
    tokens = answers * length
    speed = speeds.get(job.model.name, plan.speed.tokens_per_second)
    seconds = tokens / speed
    if job.task.source == BATCH:
        seconds = count * job.runs * job.task.cap * BATCH_SECONDS_PER_TOKEN
    return Estimate(job, count, answers, tokens, seconds, state=state)
