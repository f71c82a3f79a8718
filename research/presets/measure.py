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
import gzip
import json
import lzma
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.workload import machine
from lz_penalty.detection import distinct, is_degenerate, is_loop
from lz_penalty.evaluation.idle import is_idle
from lz_penalty.evaluation.measures import Checker
from lz_penalty.evaluation.penalties import Penalty, family, penalty
from lz_penalty.evaluation.prompting import prompt_ids
from research.presets.settings import all_settings

MAX_PROMPT = 1_024  # tokens; longer prompts are left out
FOLLOW_UPS = ("Tell me more.", "Please answer again in other words.", "What else should I know about this?")
# No compilation, which takes a minute; CUDA graphs of whole steps, which make small models fast.
COMPILATION = {
    "mode": 0,
    "cudagraph_mode": "FULL_DECODE_ONLY",
    "cudagraph_capture_sizes": [1, 8, 32, 64, 128, 192, 256, 384, 512, 640, 768, 1024],
}
OWN = ("repetition", "frequency", "presence")  # vLLM applies these to the whole batch, so they run apart


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


# ---------------------------------------------------------------- prompts


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the records of a file of JSON lines, which may be compressed."""
    opened = {".xz": lzma.open, ".gz": gzip.open}.get(path.suffix, open)
    with opened(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def part_of(items: Sequence[Any], part: str) -> list[Any]:
    """Return the items with an even number to choose settings with, or those with an odd number to publish."""
    return list(items[0 if part == "choose" else 1 :: 2]) if part != "all" else list(items)


def text_ids(tokenizer: Any, text: str) -> list[int]:
    """Return the token ids of plain text. A base model's begin token is added, which a converted tokenizer may forget."""
    ids, begin = tokenizer(text).input_ids, tokenizer.bos_token_id
    return [begin, *ids] if tokenizer.chat_template is None and begin not in (None, *ids[:1]) else ids


def chat_ids(tokenizer: Any, *turns: str) -> list[int]:
    """Return the token ids of a chat whose turns alternate, user first; plain text for a model without a template."""
    if tokenizer.chat_template is None:
        return text_ids(tokenizer, "\n\n".join(turns) + "\n\n")
    roles = ("user", "assistant")
    return prompt_ids(tokenizer, [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)], chat=True)


# ---------------------------------------------------------------- vLLM


class Writer:
    """A vLLM engine that writes answers under many settings at once."""

    def __init__(self, model: str, given: argparse.Namespace) -> None:
        from vllm import LLM

        self.llm = LLM(
            model,
            dtype=given.dtype,
            max_model_len=given.length,
            max_num_seqs=given.batch,
            gpu_memory_utilization=0.05,  # several engines may share a GPU; the next line says what this one takes
            kv_cache_memory_bytes=int(given.memory * 2**30),
            compilation_config=COMPILATION,
            logits_processors=[
                "lz_penalty.engines.vllm:LZPenaltyLogitsProcessor",
                "lz_penalty.evaluation.vllm_baselines:BaselineLogitsProcessor",
            ],
            disable_log_stats=True,
            seed=given.seed,
        )
        self.tokenizer = self.llm.get_tokenizer()

    def do(self, job: Job) -> Iterator[dict[str, Any]]:
        """Do a job; yield a record for each setting, prompt and run."""
        settings = [penalty(name) for name in job.settings or all_settings()]
        records = part_of(read_lines(Path(job.prompts)), job.part)[: job.limit]
        asked = [
            Asked(str(record.get("id", number)), chat_ids(self.tokenizer, record["prompt"]), record.get("answer"))
            for number, record in enumerate(records)
        ]
        if job.turn == 2:
            asked = self._second_turns(job, settings[0], [record["prompt"] for record in records], asked)
        asked = [one for one in asked if len(one.ids) < MAX_PROMPT]
        for one, answers in zip(settings, self._write(job, settings, asked), strict=True):
            for prompt, outputs in zip(asked, answers, strict=True):
                for run, output in enumerate(outputs):
                    record = {"penalty": one.name, "id": prompt.name, "run": run} | measured(output)
                    if job.turn == 2:
                        record["repeats_8"] = repeated(output.token_ids, prompt.before)
                    if prompt.right is not None:
                        record["right"] = Checker("number").right(self._text(output), prompt.right)
                    yield record | ({"text": self._text(output)} if job.texts else {})

    def _second_turns(self, job: Job, first: Penalty, texts: list[str], asked: list[Asked]) -> list[Asked]:
        found = []
        written = self._write(dataclasses.replace(job, runs=1), [first], asked)[0]
        for text, one, (output,) in zip(texts, asked, written, strict=True):
            if output.finish_reason == "stop":
                for number, follow in enumerate(FOLLOW_UPS):
                    ids = chat_ids(self.tokenizer, text, self._text(output), follow)
                    found.append(Asked(f"{one.name}-{number}", ids, before=list(output.token_ids)))
        return found

    def _write(self, job: Job, settings: Sequence[Penalty], asked: Sequence[Asked]) -> list[list[list[Any]]]:
        """Return vLLM's outputs for each setting, prompt and run.

        A greedy output without a penalty is not written again for penalties that are idle on it.
        """
        from vllm import SamplingParams

        params = [
            SamplingParams(
                temperature=job.temperature,
                top_p=job.top_p,
                top_k=job.top_k,
                n=job.runs,
                max_tokens=job.cap,
                detokenize=False,
                **one.request(self.tokenizer),
            )
            for one in settings
        ]
        out: list[list[Any]] = [[None] * len(asked) for _ in settings]
        names = [one.name for one in settings]
        plain = out[names.index("none")] if "none" in names and job.temperature == 0 else None
        for group in range(3):
            jobs = [
                (number, place)
                for place in range(len(asked))
                for number, one in enumerate(settings)
                if _group(one) == group and not (group and plain and _reuse(one, plain[place], out[number], place))
            ]
            outputs = self.llm.generate(
                [{"prompt_token_ids": asked[place].ids} for _, place in jobs],
                [params[number] for number, _ in jobs],
                use_tqdm=False,
            )
            for (number, place), output in zip(jobs, outputs, strict=True):
                out[number][place] = output.outputs
        return out

    def _text(self, output: Any) -> str:
        return self.tokenizer.decode(output.token_ids, skip_special_tokens=True)


def _group(one: Penalty) -> int:
    """Return when a penalty's outputs are written: first those without a penalty, last those of vLLM's own penalties."""
    return 0 if one.name == "none" else 2 if family(one.name) in OWN else 1


def _reuse(one: Penalty, plain: list[Any], outputs: list[Any], place: int) -> bool:
    """Take the outputs without a penalty if this penalty is idle on them; return whether it is."""
    if one.config is None or not all(is_idle(one.config, output.token_ids) for output in plain):
        return False
    outputs[place] = plain
    return True


def measured(output: Any) -> dict[str, Any]:
    """Return the measures of one answer."""
    tokens = list(output.token_ids)
    return {
        "degenerate": is_degenerate(tokens),
        "loop": is_loop(tokens),
        "distinct_4": round(distinct(tokens, 4), 4),
        "capped": output.finish_reason == "length",
        "tokens": len(tokens),
    }


def repeated(tokens: Sequence[int], before: Sequence[int], n: int = 8) -> float | None:
    """Return the share of n-grams that also occur in the earlier answer; `None` for an answer that is too short."""
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    known = {tuple(before[i : i + n]) for i in range(len(before) - n + 1)}
    return round(sum(gram in known for gram in grams) / len(grams), 4) if grams else None


# ---------------------------------------------------------------- command


def device() -> dict[str, Any]:
    """Return the name of the device and vLLM's version."""
    import torch

    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    found = metadata.packages_distributions().get("vllm")
    return {"gpu": name, "vllm": metadata.version(found[0]) if found else None}


def do_jobs(writer: Writer, model: str, folder: Path) -> int:
    """Do the jobs of a folder that have no result yet; return how many were done."""
    done = 0
    for path in sorted(folder.glob("*.job.json")):
        name = path.name.removesuffix(".job.json")
        if (folder / f"{name}.jsonl.xz").exists():
            continue
        job = Job(**json.loads(path.read_text(encoding="utf-8")))
        begin, tokens, answers = time.perf_counter(), 0, 0
        part = folder / f"{name}.part"
        with lzma.open(part, "wt", encoding="utf-8", preset=1) as file:
            described = dataclasses.asdict(job) | {"prompts": Path(job.prompts).name}
            about = {"model": model, "job": described, "machine": machine(**device())}
            file.write(json.dumps(about) + "\n")
            for record in writer.do(job):
                file.write(json.dumps(record) + "\n")
                tokens, answers = tokens + record["tokens"], answers + 1
        os.replace(part, folder / f"{name}.jsonl.xz")
        print(f"{name}: {answers:,} answers, {tokens:,} tokens, {time.perf_counter() - begin:.0f} s", flush=True)
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
    writer = Writer(given.model, given)
    while True:
        done = do_jobs(writer, Path(given.model).name, given.folder)
        if not given.watch or (given.folder / "stop").exists():
            return
        if not done:
            time.sleep(0.5)


if __name__ == "__main__":
    main()
