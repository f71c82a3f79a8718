"""Measure penalties on one model with vLLM and our plug-in: `python -m research.presets.measure MODEL FOLDER`.

FOLDER contains jobs: files `NAME.job.json` with the fields of `Job`. They are done in the order of their names. The result of
a job is `NAME.jsonl.xz`: a line that describes the job and the machine, then a line per answer. A job that has a result is not
done again, so that an interrupted run can go on. `--watch` waits for further jobs until there is a file `FOLDER/stop`, because
an engine takes a minute to start.

MODEL is a folder in Hugging Face's layout.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lz_penalty.evaluation.measures import Checker
from lz_penalty.evaluation.study._offline.doing import ended
from lz_penalty.evaluation.study._offline.files import RESULT, machine, part_of, read_lines, write_result
from lz_penalty.evaluation.study._offline.settings import Setting, setting
from lz_penalty.evaluation.study._offline.writer import Engine, Sampling, Writer, Written, chat_ids, measured
from research.presets.settings import all_settings

MAX_PROMPT = 1_024  # tokens; longer prompts are left out
FOLLOW_UPS = ("Tell me more.", "Please answer again in other words.", "What else should I know about this?")


@dataclass(frozen=True)
class Job:
    """What to write, and how.

    Args:
        prompts: a file of JSON lines with `prompt` and optionally `id` and `answer`, the number that is right; it may be
            compressed (.xz, .gz).
        settings: names of penalties; all of `settings` if there are none.
        part: `choose` takes the prompts with even numbers, `publish` those with odd numbers, `all` takes all.
        limit: at most so many prompts.
        turn: 2 asks for a second answer in the same chat. The first one is what the first setting writes.
        temperature, top_p, top_k: of the sampling; 0 is greedy.
        runs: how often each prompt is answered.
        cap: the most tokens of an answer.
        texts: whether to keep the texts of the answers.
    """

    prompts: str
    settings: tuple[str, ...] = ()
    part: str = "all"
    limit: int = 1_000_000
    turn: int = 1
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    runs: int = 1
    cap: int = 1_024
    texts: bool = False


class Asked(NamedTuple):
    """A prompt as token ids, the right answer, and the answer that was given before the prompt in the same chat."""

    name: str
    ids: list[int]
    right: str | None = None
    before: Sequence[int] = ()


class Answers:
    """Writes the answers of jobs with one engine."""

    def __init__(self, model: str, engine: Engine) -> None:
        self.writer = Writer(model, engine)

    def do(self, job: Job) -> Iterator[dict[str, Any]]:
        """Do a job; yield a record for each setting, prompt and run."""
        settings = [setting(name) for name in job.settings or all_settings()]
        records = part_of(read_lines(Path(job.prompts)), job.part)[: job.limit]
        asked = [
            Asked(str(record.get("id", number)), self._ids(record["prompt"]), record.get("answer"))
            for number, record in enumerate(records)
        ]
        if job.turn == 2:
            asked = self._second_turns(job, settings[0], [record["prompt"] for record in records], asked)
        asked = [one for one in asked if len(one.ids) < MAX_PROMPT]
        for one, answers in zip(settings, self._write(job, settings, asked), strict=True):
            for prompt, outputs in zip(asked, answers, strict=True):
                for run, output in enumerate(ended(answer, one) for answer in outputs):
                    record = {"penalty": one.name, "id": prompt.name, "run": run} | measured(*output)
                    if job.turn == 2:
                        record["repeats_8"] = repeated(output.tokens, prompt.before)
                    text = self.writer.text(output.tokens) if job.texts or prompt.right is not None else ""
                    if prompt.right is not None:
                        record["right"] = Checker("number").right(text, prompt.right)
                    yield record | ({"text": text} if job.texts else {})

    def _ids(self, *turns: str) -> list[int]:
        return chat_ids(self.writer.tokenizer, *turns)

    def _write(self, job: Job, settings: Sequence[Setting], asked: Sequence[Asked]) -> list[list[list[Written]]]:
        sampling = Sampling(job.temperature, job.top_p, job.top_k, job.runs, job.cap)
        return self.writer.write([one.ids for one in asked], settings, sampling)

    def _second_turns(self, job: Job, first: Setting, texts: list[str], asked: list[Asked]) -> list[Asked]:
        found = []
        written = self._write(dataclasses.replace(job, runs=1), [first], asked)[0]
        for text, one, (output,) in zip(texts, asked, written, strict=True):
            if not output.capped:
                for number, follow in enumerate(FOLLOW_UPS):
                    ids = self._ids(text, self.writer.text(output.tokens), follow)
                    found.append(Asked(f"{one.name}-{number}", ids, before=list(output.tokens)))
        return found


def repeated(tokens: Sequence[int], before: Sequence[int], n: int = 8) -> float | None:
    """Return the share of n-grams that also occur in the earlier answer; `None` for an answer that is too short."""
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    known = {tuple(before[i : i + n]) for i in range(len(before) - n + 1)}
    return round(sum(gram in known for gram in grams) / len(grams), 4) if grams else None


# ---------------------------------------------------------------- command


def do_jobs(answers: Answers, model: str, folder: Path) -> int:
    """Do the jobs of a folder that have no result yet; return how many were done."""
    done = 0
    for path in sorted(folder.glob("*.job.json")):
        name = path.name.removesuffix(".job.json")
        if (folder / f"{name}{RESULT}").exists():
            continue
        job = Job(**json.loads(path.read_text(encoding="utf-8")))
        begin = time.perf_counter()
        rows = list(answers.do(job))
        described = dataclasses.asdict(job) | {"prompts": Path(job.prompts).name}
        write_result(folder / f"{name}{RESULT}", {"model": model, "job": described, "machine": machine()}, rows)
        tokens = sum(row["tokens"] for row in rows)
        print(f"{name}: {len(rows):,} answers, {tokens:,} tokens, {time.perf_counter() - begin:.0f} s", flush=True)
        done += 1
    return done


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder in Hugging Face's layout")
    parser.add_argument("folder", type=Path, help="the jobs, and their results")
    parser.add_argument("--watch", action="store_true", help="wait for further jobs until there is a file `stop`")
    parser.add_argument("--length", type=int, default=2_048, help="the most tokens of a prompt and its answer")
    parser.add_argument("--batch", type=int, default=768, help="answers that are written at the same time")
    parser.add_argument("--memory", type=float, default=16, help="GiB for vLLM's cache of keys and values")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", default="bfloat16")
    given = parser.parse_args()
    answers = Answers(given.model, Engine(given.dtype, given.length, given.batch, given.memory, given.seed))
    while True:
        done = do_jobs(answers, Path(given.model).name, given.folder)
        if not given.watch or (given.folder / "stop").exists():
            return
        if not done:
            time.sleep(0.5)


if __name__ == "__main__":
    main()
