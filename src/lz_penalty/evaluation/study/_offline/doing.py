"""Do one job: write answers and score them, time batches, or measure harm."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lz_penalty.evaluation.study._offline.files import Record
from lz_penalty.evaluation.study._offline.plan import BATCH, HARM, Job
from lz_penalty.evaluation.study._offline.questions import Question, questions
from lz_penalty.evaluation.study._offline.settings import NONE, Setting, cut, setting
from lz_penalty.evaluation.study._offline.writer import Sampling, Writer, Written, chat_ids, measured

__all__ = ["batch_records", "described", "ended", "records"]

WARM_UP = 128  # tokens; a gate opens after 48
SPARE = 8  # tokens of a prompt and its answer that are left free


def records(writer: Writer, job: Job, names: Sequence[str], data: Path, limit: int | None) -> list[Record]:
    """Return a record for each setting, question and run, with the text of the answer as `text`.

    Stopping is applied to the answers without a penalty: they end where it would have ended them.
    """
    settings = [setting(name) for name in names]
    asked, prompts = _prompts(writer, job, data, limit)
    written = [one for one in settings if one.stop is None]
    if len(written) < len(settings) and NONE not in names:
        written.append(setting(NONE))
    answers = dict(zip([one.name for one in written], writer.write(prompts, written, _sampling(job)), strict=True))
    made: list[tuple[Question, Record]] = []
    for one in settings:
        for question, runs in zip(asked, answers[one.name if one.stop is None else NONE], strict=True):
            for run, answer in enumerate(runs, job.first_run):
                whole = ended(answer, one)
                record = {"penalty": one.name, "id": question.name, "run": run} | measured(*whole)
                made.append((question, record | {"text": writer.text(whole.tokens)}))
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # programs run in processes of their own
        for (_, record), score in zip(made, pool.map(_score, made), strict=True):
            record.update(score)
    return [record for _, record in made]


def _score(item: tuple[Question, Record]) -> Record:
    question, record = item
    return question.score(record["text"]) if question.score is not None else {}


def ended(answer: Written, one: Setting) -> Written:
    """Return an answer that was written without a penalty, up to the place where the setting ends it."""
    kept = cut(answer.tokens, one.stop) if one.stop is not None else None
    return answer if kept is None else Written(kept, False)


def batch_records(writer: Writer, job: Job, names: Sequence[str], data: Path, limit: int | None) -> list[Record]:
    """Return a record for each setting and run: the wall time of a whole batch, one setting at a time, taking turns.

    The beginning of a batch of each setting comes first and is not counted, so that the clock does not measure what vLLM and
    the kernels do only once.
    """
    asked, prompts = _prompts(writer, job, data, limit)
    settings = [setting(name) for name in names]
    for one in settings:
        writer.write(prompts, [one], Sampling(cap=min(job.task.cap, WARM_UP), may_end=False))
    made = []
    for run in range(job.first_run, job.first_run + job.runs):
        for one in settings:
            begin = time.perf_counter()
            (answers,) = writer.write(prompts, [one], _sampling(job, runs=1))
            seconds = time.perf_counter() - begin
            every = [answer for runs in answers for answer in runs]
            made.append(
                {
                    "penalty": one.name,
                    "run": run,
                    "seconds": round(seconds, 3),
                    "answers": len(asked),
                    "tokens": sum(len(answer.tokens) for answer in every),
                    "capped": sum(answer.capped for answer in every),
                }
            )
    return made


def _prompts(writer: Writer, job: Job, data: Path, limit: int | None) -> tuple[list[Question], list[list[int]]]:
    """Return the questions that fit, and their token ids: at least half of the model's length is left for the answer."""
    every = questions(job.task, data)[:limit]
    pairs = [(question, chat_ids(writer.tokenizer, question.prompt)) for question in every]
    most = max(job.model.length - job.task.cap, job.model.length // 2) - SPARE
    fitting = [(question, ids) for question, ids in pairs if len(ids) <= most]
    return [question for question, _ in fitting], [ids for _, ids in fitting]


def _sampling(job: Job, runs: int | None = None) -> Sampling:
    return Sampling(job.temperature, job.top_p, job.top_k, runs or job.runs, job.task.cap, may_end=job.task.may_end)


def described(job: Job, names: Sequence[str], limit: int | None) -> dict[str, Any]:
    """Return what a result file says about its job."""
    task = job.task
    said: dict[str, Any] = {"task": task.name, "source": task.source, "part": task.part, "settings": list(names)}
    said["limit"] = limit
    if task.source == HARM:
        return said | {"what": HARM}
    return (
        said
        | {
            "prompts": f"{task.source}.jsonl",
            "samples": task.samples,
            "turn": 1,
            "temperature": job.temperature,
            "top_p": job.top_p,
            "top_k": job.top_k,
            "recommended": job.recommended,
            "first_run": job.first_run,
            "runs": job.runs,
            "cap": task.cap,
            "may_end": task.may_end,
        }
        | ({"what": BATCH} if task.source == BATCH else {})
    )
