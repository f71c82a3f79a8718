"""The folder of a study: which jobs have results, and what they say about tuning and speed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lz_penalty._files import read_json
from lz_penalty.errors import LZPenaltyError
from lz_penalty.evaluation.study._offline.choice import best_of_families, of_answers, of_harm
from lz_penalty.evaluation.study._offline.files import RESULT, Record, read_result
from lz_penalty.evaluation.study._offline.plan import BATCH, HARM, Job, Plan, Speed, jobs
from lz_penalty.evaluation.study._offline.settings import NONE, canonical, setting
from lz_penalty.evaluation.study._offline.writer import group_of

MOST_BYTES = 2**26  # of a summary

__all__ = ["Folder", "read_summary", "tuned"]


class Folder:
    """A study's folder: `answers` contains a result file per job, `texts` the texts of answers, `locks` what runs now.

    Args:
        path: the folder.
        tuning: a summary of earlier tuning results, if there is one. What it has is not measured again.
    """

    def __init__(self, path: Path, tuning: Path | None = None) -> None:
        self.path = path
        self._earlier = read_summary(tuning) if tuning is not None else {}
        self.answers, self.texts, self.locks = path / "answers", path / "texts", path / "locks"
        self._best: dict[str, str] = {}
        self._timed: dict[Path, tuple[str, float, float]] = {}  # what `_timed` returns for result files

    def result(self, job: Job) -> Path:
        """Return the result file of a job."""
        return self.answers / f"{job.name}{RESULT}"

    def is_done(self, job: Job) -> bool:
        """Return whether a job has a result."""
        return self.result(job).exists()

    def check_limit(self, plan: Plan, limit: int | None) -> None:
        """Raise if the results of the plan's jobs were made with another `--limit`. Other files here do not matter."""
        for path in sorted({self.result(job) for job in jobs(plan) if self.is_done(job)}):
            given = read_result(path)[0]["job"].get("limit")
            if given != limit:
                made = f"--limit {given}" if given is not None else "no --limit"
                raise LZPenaltyError(f"{path}: was made with {made}. Give the same limit, or another folder as --out.")

    def best(self, plan: Plan) -> dict[str, str]:
        """Return the best setting of each family; none before all tuning jobs of the sweep are done."""
        tuning = [job for job in jobs(plan) if job.is_tuning and self.settings_of(plan, job)]
        if not self._best and (tuning or self._earlier) and all(map(self.is_done, tuning)):
            own = tuned(read_result(self.result(job)) for job in tuning)
            self._best = best_of_families(plan, {**self._earlier, **own})
        return self._best

    def settings_of(self, plan: Plan, job: Job) -> tuple[str, ...]:
        """Return the settings of a job, as far as the best of each family is known.

        A tuning job has those that the earlier summary lacks, and `none`, from which some of them are computed. It has
        none at all if the summary lacks nothing.
        """
        if not job.is_tuning:
            return job.usable(plan.settings_of(job.task, self.best(plan)))
        names = job.usable(plan.settings_of(job.task, {}))
        lacking = [name for name in names if canonical(name) not in self._earlier]
        return tuple(name for name in names if name == NONE or name in lacking) if lacking else ()

    def paces(self, speed: Speed) -> dict[str, float]:
        """Return how long the finished jobs of each model took, divided by what `speed` says for these answers."""
        totals: dict[str, list[float]] = {}
        for path in sorted(self.answers.glob(f"*{RESULT}")):
            if path not in self._timed:
                self._timed[path] = _timed(*read_result(path), speed)
            model, seconds, expected = self._timed[path]
            total = totals.setdefault(model, [0.0, 0.0])
            total[0], total[1] = total[0] + seconds, total[1] + expected
        return {model: seconds / expected for model, (seconds, expected) in totals.items() if seconds and expected}


def _timed(about: Record, rows: list[Record], speed: Speed) -> tuple[str, float, float]:
    """Return the model of a result file, the seconds that its answers took, and those that `speed` says; zeros for others."""
    job = about["job"]
    if job.get("what") in (HARM, BATCH) or "seconds" not in about:
        return about["model"], 0.0, 0.0
    groups: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        if setting(row["penalty"]).stop is None:
            groups[group_of(setting(row["penalty"]), job["temperature"])].append(row["tokens"])
    return about["model"], about["seconds"], sum(speed.seconds(max(tokens), sum(tokens)) for tokens in groups.values())


def tuned(results: Iterable[tuple[Record, list[Record]]]) -> Mapping[str, Any]:
    """Return `{setting: {model: {source or harm: means}}}` of tuning jobs."""
    settings: dict[str, Any] = {}
    for about, rows in results:
        harm = about["job"].get("what") == HARM
        groups: dict[str, list[Record]] = defaultdict(list)
        for row in rows:
            groups[canonical(row["penalty"])].append(row)
        for name, group in groups.items():
            means = of_harm(group) if harm else of_answers(group)
            settings.setdefault(name, {}).setdefault(about["model"], {})[HARM if harm else about["job"]["source"]] = (
                means
            )
    return settings


def read_summary(path: Path) -> dict[str, Any]:
    """Return `{setting: {model: {source or harm: means}}}` of a summary of tuning results."""
    data = read_json(path, MOST_BYTES, "tuning")
    if not isinstance(data, dict) or not isinstance(data.get("settings"), dict):
        raise LZPenaltyError(f"tuning {path}: must be a summary that research.presets.summary wrote.")
    return {canonical(name): one for name, one in data["settings"].items()}
