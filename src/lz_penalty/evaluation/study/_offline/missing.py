"""Say what a sweep asks for and the results of a study lack."""

from __future__ import annotations

from collections import defaultdict

from lz_penalty.evaluation.study._offline.choice import undecided
from lz_penalty.evaluation.study._offline.plan import BATCH, HARM, Job, jobs
from lz_penalty.evaluation.study._offline.settings import canonical
from lz_penalty.evaluation.study._offline.study import GREEDY, RECOMMENDED, Cell, Study

__all__ = ["missing"]

MOST_NAMES = 4  # that a line names


def missing(study: Study) -> list[str]:
    """Return a line for each task: the samplings, models and settings that were not measured."""
    cells: dict[tuple[str, str, str], tuple[Job, list[str], list[str]]] = {}  # by task, model and sampling
    for job in jobs(study.plan):
        if not job.is_tuning:
            names = job.usable(study.plan.settings_of(job.task, study.best))
            _, wanted, lacking = cells.setdefault((job.task.name, job.model.name, _way(job)), (job, [], []))
            wanted += names
            lacking += [name for name in names if not _is_measured(study, job, name)]
    found: dict[str, dict[str, list[str]]] = {}
    for (task, _, way), (job, wanted, lacking) in cells.items():
        if lacking:
            told = _told(job, list(dict.fromkeys(lacking)), len(set(wanted)))
            found.setdefault(task, {}).setdefault(told, []).append(way)
    return [_line(task, groups) for task, groups in found.items()] + _tuning(study)


def _is_measured(study: Study, job: Job, name: str) -> bool:
    if job.task.source in (HARM, BATCH):
        return (job.model.name, name) in (study.harm if job.task.source == HARM else study.batches)
    rows = study.answers.get(Cell(job.model.name, job.task.name, _how(job), name), [])
    return set(range(job.first_run, job.first_run + job.runs)) <= {row["run"] for row in rows}


def _how(job: Job) -> str:
    return RECOMMENDED if job.recommended else f"{job.temperature:g}" if job.temperature else GREEDY


def _way(job: Job) -> str:
    if job.task.source in (HARM, BATCH):
        return ""
    return {GREEDY: "greedy", RECOMMENDED: "recommended sampling"}.get(_how(job), f"temperature {job.temperature:g}")


def _told(job: Job, lacking: list[str], wanted: int) -> str:
    title = job.model.title or job.model.name
    if len(lacking) == wanted:
        return title
    if len(lacking) > MOST_NAMES:
        also = ", guarded among them" if canonical("guarded") in lacking else ""
        return f"{title} ({len(lacking)} of {wanted} settings{also})"
    return f"{title} ({', '.join(f'`{name}`' for name in lacking)})"


def _line(task: str, groups: dict[str, list[str]]) -> str:
    """Join models that lack the same samplings."""
    by_way: dict[str, list[str]] = defaultdict(list)
    for told, ways in groups.items():
        by_way[", ".join(dict.fromkeys(filter(None, ways)))].append(told)
    parts = [f"{way} on {', '.join(models)}" if way else ", ".join(models) for way, models in by_way.items()]
    return f"{task}: {'; '.join(parts)}"


def _tuning(study: Study) -> list[str]:
    """Return which settings have no number on the tuning data."""
    told = []
    for family, names in study.plan.families.items():
        lacking = [name for name in names if canonical(name) not in study.tuning]
        if lacking:
            some = ", ".join(f"`{name}`" for name in lacking)
            told.append(f"{family} ({'all six' if len(lacking) == len(names) else some})")
    part = undecided(study.plan, study.tuning)
    if part:
        told.append(
            f"some prompts for {', '.join(f'`{name}`' for name in part)}, which could be the best of their families"
        )
    return [f"tuning: {'; '.join(told)}"] if told else []
