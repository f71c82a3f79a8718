"""Estimate what the jobs of a sweep take: answers, tokens, and minutes of one engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lz_penalty.evaluation.study._offline.plan import BATCH, HARM, Job, Plan
from lz_penalty.evaluation.study._offline.questions import data_problem, questions
from lz_penalty.evaluation.study._offline.results import Folder
from lz_penalty.evaluation.study._offline.settings import setting
from lz_penalty.evaluation.study._offline.writer import group_of

__all__ = ["Estimate", "estimates", "model_problem"]

TEXTS_OF_HARM = 94  # texts of one part
WAITS = "waits for tuning"


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
    best, paces = folder.best(plan), folder.paces(plan.speed)
    found, used, sitting, started = list[Estimate](), 0.0, 1, set[str]()
    for job in given:
        one = _estimate(plan, job, best, paces, folder, data, models, limit)
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
    paces: Mapping[str, float],
    folder: Folder,
    data: Path,
    models: Path,
    limit: int | None,
) -> Estimate:
    waits = plan.waits_for(job.task, best)
    names = folder.settings_of(plan, job)
    count = len(names) + -(-len(waits) // job.task.divided)
    problem = data_problem(job.task, data) or model_problem(job, models)
    state = "done" if folder.is_done(job) or not (names or waits) else problem or (WAITS if waits else "")
    if job.task.source == HARM:
        texts = min(TEXTS_OF_HARM, limit or TEXTS_OF_HARM)
        return Estimate(job, count, texts * count, 0.0, texts * count / plan.speed.texts_per_second, state=state)
    asked = 0 if data_problem(job.task, data) else len(questions(job.task, data)[:limit])
    length = min(job.task.tokens.get(job.model.name, job.task.cap), job.task.cap)
    answers = asked * job.runs
    if job.task.source == BATCH:
        seconds = count * job.runs * plan.speed.seconds(job.task.cap, asked * length)
        return Estimate(job, count, count * answers, count * answers * length, seconds, state=state)
    groups = Counter(group_of(one, job.temperature) for one in map(setting, names) if one.stop is None)
    groups[1] += count - len(names)  # settings that are not known yet: most families are in this group
    expected = sum(plan.speed.seconds(job.task.cap, n * answers * length) for n in groups.values() if n)
    written = groups.total() * answers
    seconds = expected * paces.get(job.model.name, 1.0)
    return Estimate(job, count, written, written * length, seconds, state=state)
