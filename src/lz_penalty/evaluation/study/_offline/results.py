"""The folder of a study: which jobs have results, and what they say about tuning and speed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lz_penalty.errors import LZPenaltyError
from lz_penalty.evaluation.study._offline.choice import best_of_families, of_answers, of_harm
from lz_penalty.evaluation.study._offline.files import RESULT, Record, read_result
from lz_penalty.evaluation.study._offline.plan import BATCH, HARM, Job, Plan, jobs
from lz_penalty.evaluation.study._offline.settings import canonical, setting

__all__ = ["Folder", "tuned"]


class Folder:
    """A study's folder: `answers` contains a result file per job, `texts` the texts of answers, `locks` what runs now."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answers, self.texts, self.locks = path / "answers", path / "texts", path / "locks"
        self._best: dict[str, str] = {}
        self._written: dict[Path, tuple[str, float, float]] = {}  # model, tokens and seconds of result files

    def result(self, job: Job) -> Path:
        """Return the result file of a job."""
        return self.answers / f"{job.name}{RESULT}"

    def is_done(self, job: Job) -> bool:
        """Return whether a job has a result."""
        return self.result(job).exists()

    def check_limit(self, limit: int | None) -> None:
        """Raise if results here were made with another `--limit`."""
        for path in sorted(self.answers.glob(f"*{RESULT}")):
            given = read_result(path)[0]["job"].get("limit")
            if given != limit:
                made = f"--limit {given}" if given is not None else "no --limit"
                raise LZPenaltyError(f"{path}: was made with {made}. Give the same limit, or another folder as --out.")

    def best(self, plan: Plan) -> dict[str, str]:
        """Return the best setting of each family; none before all tuning jobs of the sweep are done."""
        tuning = [job for job in jobs(plan) if job.is_tuning]
        if not self._best and tuning and all(map(self.is_done, tuning)):
            self._best = best_of_families(plan, tuned(read_result(self.result(job)) for job in tuning))
        return self._best

    def speeds(self) -> dict[str, float]:
        """Return the tokens per second of each model, as measured by the jobs that are done."""
        for path in sorted(self.answers.glob(f"*{RESULT}")):
            if path not in self._written:
                about, rows = read_result(path)
                timed = about["job"].get("what") not in (HARM, BATCH)
                written = sum(row["tokens"] for row in rows if timed and setting(row["penalty"]).stop is None)
                self._written[path] = (about["model"], written, about.get("seconds", 0.0) if timed else 0.0)
        totals: dict[str, list[float]] = {}
        for model, tokens, seconds in self._written.values():
            total = totals.setdefault(model, [0.0, 0.0])
            total[0], total[1] = total[0] + tokens, total[1] + seconds
        return {model: tokens / seconds for model, (tokens, seconds) in totals.items() if tokens and seconds}


def tuned(results: Iterable[tuple[Record, list[Record]]]) -> Mapping[str, Any]:
    """Return `{setting: {model: {task or harm: means}}}` of tuning jobs."""
    settings: dict[str, Any] = {}
    for about, rows in results:
        harm = about["job"].get("what") == HARM
        groups: dict[str, list[Record]] = defaultdict(list)
        for row in rows:
            groups[canonical(row["penalty"])].append(row)
        for name, group in groups.items():
            means = of_harm(group) if harm else of_answers(group)
            settings.setdefault(name, {}).setdefault(about["model"], {})[HARM if harm else about["job"]["task"]] = means
    return settings
