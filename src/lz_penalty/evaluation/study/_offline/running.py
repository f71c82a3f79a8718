"""Do the jobs of a sweep. Several processes can share a folder; a job that has a result is not done again."""

from __future__ import annotations

import fcntl
import os
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lz_penalty.evaluation.study._offline.doing import batch_records, described, records
from lz_penalty.evaluation.study._offline.estimate import WAITS, Estimate, estimates
from lz_penalty.evaluation.study._offline.files import RESULT, Record, machine, write_result
from lz_penalty.evaluation.study._offline.harm import cases, harm_records
from lz_penalty.evaluation.study._offline.plan import BATCH, HARM, Job, Plan, jobs
from lz_penalty.evaluation.study._offline.results import Folder
from lz_penalty.evaluation.study._offline.settings import setting
from lz_penalty.evaluation.study._offline.writer import Engine, Writer

__all__ = ["Options", "Outcome", "chosen", "run_plan"]

PLACES = 20  # an engine that runs is worth so many places in the order of importance, because a new one takes a minute
SECONDS_TO_LOOK = 2.0


@dataclass(frozen=True)
class Options:
    """How a sweep is run.

    Args:
        data: the folder of the questions.
        models: the folder of the models, a folder each.
        out: the study's folder.
        only: parts of the names of jobs; jobs without any of them are left out.
        limit: at most so many questions or texts of each job, to try things.
        shard, shards: this process is number `shard` of `shards`, which share a GPU.
        minutes: begin no job that would not end in so many minutes.
        texts: whether to keep the texts of answers, in `texts`.
        tuning: a summary of earlier tuning results; tuning jobs measure only what it lacks.
        dtype, batch, memory: of the engines.
    """

    data: Path
    models: Path
    out: Path
    only: tuple[str, ...] = ()
    limit: int | None = None
    shard: int = 1
    shards: int = 1
    minutes: float | None = None
    texts: bool = False
    tuning: Path | None = None
    dtype: str = "bfloat16"
    batch: int = 1_024
    memory: float = 16.0


@dataclass
class Outcome:
    """What a process did: names of jobs, and why others were left out or failed."""

    done: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    left: int = 0


def chosen(plan: Plan, only: Sequence[str]) -> list[Job]:
    """Return the jobs whose names contain one of these words; all jobs if there are none."""
    return [job for job in jobs(plan) if not only or any(word in job.name for word in only)]


def run_plan(plan: Plan, options: Options, say: Callable[[str], Any]) -> Outcome:
    """Do all jobs that can be done, the most important first; `say` gets a line per job."""
    with _Process(plan, options, say) as process:
        return process.run()


class _Process:
    """One process of a run: at most one engine, and the jobs that it takes."""

    def __init__(self, plan: Plan, options: Options, say: Callable[[str], Any]) -> None:
        self.plan, self.options, self.say = plan, options, say
        self.folder = Folder(options.out, options.tuning)
        self.writer: Writer | None = None
        self.model: str | None = None
        self.failed: set[str] = set()
        self.outcome = Outcome()
        self.begin = time.monotonic()

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def run(self) -> Outcome:
        for part in (self.folder.answers, self.folder.locks):
            part.mkdir(parents=True, exist_ok=True)
        self.folder.check_limit(self.plan, self.options.limit)
        while True:
            left = self._left()
            ready = [one for one in left if not one.state and self._fits(one)]
            taken = False
            for one in sorted(ready, key=self._place):
                with _locked(self.folder.locks / f"{one.job.name}.lock") as free:
                    if free and not self.folder.is_done(one.job):
                        self._do(one)
                        taken = True
                if taken:
                    break
            if taken:
                continue
            waiting = any(one.state == WAITS for one in left)
            if waiting and self._others_are_tuning() and not self._is_late():
                time.sleep(SECONDS_TO_LOOK)
                continue
            self.outcome.left = len(left)
            return self.outcome

    def _left(self) -> list[Estimate]:
        """Return the jobs without a result, the most important first; note those that cannot run here, each reason once."""
        options = self.options
        given = chosen(self.plan, options.only)
        found = estimates(self.plan, given, self.folder, options.data, options.models, options.limit, 1e9)
        left = []
        for one in found:
            if one.state == "done" or one.job.name in self.failed:
                continue
            if one.job.task.source == BATCH and options.shards > 1:
                self._note("jobs that time batches need the GPU for themselves; run them without --shard.")
            elif one.state and one.state != WAITS:
                self._note(one.state)
            else:
                left.append(one)
        return left

    def _note(self, problem: str) -> None:
        if problem not in self.outcome.problems:
            self.outcome.problems.append(problem)

    def _place(self, one: Estimate) -> float:
        order = jobs(self.plan).index(one.job)
        return order - (PLACES if one.job.model.name == self.model else 0)

    def _fits(self, one: Estimate) -> bool:
        if self.options.minutes is None:
            return True
        start = 0.0 if one.job.model.name == self.model else self.plan.speed.start_seconds
        return time.monotonic() - self.begin + start + one.seconds <= 60 * self.options.minutes

    def _is_late(self) -> bool:
        return self.options.minutes is not None and time.monotonic() - self.begin > 60 * self.options.minutes

    def _others_are_tuning(self) -> bool:
        for job in jobs(self.plan):
            if job.is_tuning and not self.folder.is_done(job):
                with _locked(self.folder.locks / f"{job.name}.lock") as free:
                    if not free:
                        return True
        return False

    def _do(self, one: Estimate) -> None:
        job = one.job
        names = self.folder.settings_of(self.plan, job)
        try:
            writer = None if job.task.source == HARM else self._engine(job)
            begin = time.perf_counter()
            rows = self._records(writer, job, names)
        except Exception as error:  # an engine or a model may raise anything; the other jobs go on
            self.failed.add(job.name)
            self._note(
                f"job {job.name}: failed ({type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]})."
            )
            if job.task.source != HARM:  # it may be the engine that has failed: the next job starts another one
                with suppress(Exception):
                    self._close()
            return
        seconds = time.perf_counter() - begin
        about = {
            "model": job.model.name,
            "job": described(job, names, self.options.limit),
            "seconds": round(seconds, 1),
            "engines": self.options.shards,
            "dtype": self.options.dtype,
            "machine": machine(),
        }
        texts = [{key: row[key] for key in ("penalty", "id", "run", "text")} for row in rows if "text" in row]
        for row in rows:
            row.pop("text", None)
        if self.options.texts and texts:
            self.folder.texts.mkdir(exist_ok=True)
            write_result(self.folder.texts / f"{job.name}{RESULT}", about, texts)
        write_result(self.folder.result(job), about, rows)
        self.outcome.done.append(job.name)
        tokens = sum(row["tokens"] for row in rows)
        self.say(f"{job.name}: {len(rows):,} results, {tokens:,} tokens, {seconds:.0f} s")

    def _records(self, writer: Writer | None, job: Job, names: Sequence[str]) -> list[Record]:
        options = self.options
        if writer is not None:
            make = batch_records if job.task.source == BATCH else records
            return make(writer, job, names, options.data, options.limit)
        from lz_penalty.evaluation.loading import load

        loaded = load(str(options.models / job.model.name), dtype=options.dtype)
        texts = cases(loaded.tokenizer, job.task.part, options.data, options.limit)
        return list(harm_records(loaded, texts, [setting(name) for name in names]))

    def _engine(self, job: Job) -> Writer:
        if self.writer is None or self.model != job.model.name:
            self._close()
            seed = (
                zlib.crc32(f"{job.name} {self.options.shard}".encode()) % 2**31
            )  # no two engines draw the same numbers
            options = self.options
            engine = Engine(options.dtype, job.model.length, options.batch, options.memory, seed)
            self.writer, self.model = Writer(str(options.models / job.model.name), engine), job.model.name
        return self.writer

    def _close(self) -> None:
        writer, self.writer, self.model = self.writer, None, None
        if writer is not None:
            writer.close()


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Yield whether this process now has the lock. The system frees it when the process ends, however it ends."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(descriptor)
