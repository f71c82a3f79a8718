"""Measure the settings of `settings` on one model: `python -m research.presets.measure answers MODEL --out FILE ...`.

answers   write answers to instructions with vLLM and our plug-in, greedily, all settings in one engine
problems  solve GSM8K's problems with vLLM, greedily
turns     write a second answer in the same chat: does a model repeat its first answer if the prompt is left out?
harm      how much worse the penalised model predicts text that is as it should be; nothing is generated

MODEL is a folder in Hugging Face's layout. `--part choose` takes the even numbers of instructions and texts, `--part publish`
the odd ones. `--settings` names single settings; by default all of `settings` are measured.
"""

from __future__ import annotations

import argparse
import gzip
import json
import lzma
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.workload import machine, write_json
from lz_penalty.detection import distinct, is_degenerate, is_loop
from lz_penalty.evaluation.measures import Checker
from lz_penalty.evaluation.penalties import Penalty, family, penalty
from lz_penalty.evaluation.prompting import prompt_ids
from research.presets.settings import all_settings

MAX_PROMPT = 1_024  # tokens; longer instructions are left out
NEAR_LOOP_TOKENS = 100  # a near-loop has at least as many here: a short answer that ends by itself is no loop
FOLLOW_UPS = ("Tell me more.", "Please answer again in other words.", "What else should I know about this?")
GSM8K = "{question}\n\nThink step by step, and write the final number at the end."
OWN = ("repetition", "frequency", "presence")  # vLLM applies these to the whole batch, so they run apart


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
            max_model_len=given.cap + MAX_PROMPT,
            max_num_seqs=given.batch,
            gpu_memory_utilization=0.3,
            kv_cache_memory_bytes=int(given.memory * 2**30),
            compilation_config={"cudagraph_capture_sizes": [1, 8, 32, 64, 128, 256, 512, 768]},
            logits_processors=[
                "lz_penalty.engines.vllm:LZPenaltyLogitsProcessor",
                "lz_penalty.evaluation.vllm_baselines:BaselineLogitsProcessor",
            ],
            disable_log_stats=True,
            seed=0,
        )
        self.tokenizer = self.llm.get_tokenizer()
        self.cap = given.cap

    def write(self, prompts: Sequence[list[int]], settings: Sequence[Penalty]) -> list[list[Any]]:
        """Return vLLM's output for each setting and prompt."""
        out: list[list[Any]] = [[] for _ in settings]
        for group in ([], [*OWN]):
            chosen = [number for number, one in enumerate(settings) if (family(one.name) in OWN) == bool(group)]
            if not chosen:
                continue
            params = {number: self._params(settings[number]) for number in chosen}
            jobs = [(number, prompt) for prompt in prompts for number in chosen]
            outputs = self.llm.generate(
                [{"prompt_token_ids": prompt} for _, prompt in jobs],
                [params[number] for number, _ in jobs],
                use_tqdm=False,
            )
            for (number, _), output in zip(jobs, outputs, strict=True):
                out[number].append(output.outputs[0])
        return out

    def short_enough(self, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the records whose prompts leave room for an answer."""
        return [one for one in records if len(chat_ids(self.tokenizer, one["prompt"])) < MAX_PROMPT]

    def text(self, output: Any) -> str:
        """Return the text of an output."""
        return self.tokenizer.decode(output.token_ids, skip_special_tokens=True)

    def keep(self, path: Path | None, ids: list[Any], settings: list[Penalty], written: list[list[Any]]) -> None:
        """Write all answers to a compressed file of JSON lines, if one is asked for."""
        if path is None:
            return
        with lzma.open(path, "wt", encoding="utf-8", preset=1) as file:
            for one, row in zip(settings, written, strict=True):
                for name, output in zip(ids, row, strict=True):
                    record = {"penalty": one.name, "id": name, "end": output.finish_reason, "text": self.text(output)}
                    file.write(json.dumps(record | {"tokens": list(output.token_ids)}) + "\n")

    def _params(self, one: Penalty) -> Any:
        from vllm import SamplingParams

        return SamplingParams(temperature=0, max_tokens=self.cap, detokenize=False, **one.request(self.tokenizer))


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


def answers(given: argparse.Namespace, settings: list[Penalty]) -> dict[str, Any]:
    """Write answers to instructions."""
    writer = Writer(given.model, given)
    asked = writer.short_enough(part_of(read_lines(given.instructions), given.part))
    prompts = [chat_ids(writer.tokenizer, record["prompt"]) for record in asked]
    begin = time.perf_counter()
    written = writer.write(prompts, settings)
    print(f"{sum(len(o.token_ids) for row in written for o in row):,} tokens in {time.perf_counter() - begin:.0f} s")
    writer.keep(given.texts, [record["id"] for record in asked], settings, written)
    return {one.name: [measured(output) for output in row] for one, row in zip(settings, written, strict=True)}


def problems(given: argparse.Namespace, settings: list[Penalty]) -> dict[str, Any]:
    """Solve problems of GSM8K."""
    writer = Writer(given.model, given)
    asked = read_lines(given.gsm8k)[: given.limit]
    prompts = [chat_ids(writer.tokenizer, GSM8K.format(**record)) for record in asked]
    written = writer.write(prompts, settings)
    writer.keep(given.texts, list(range(len(asked))), settings, written)
    check = Checker("number")
    expected = [record["answer"].rpartition("####")[2].strip() for record in asked]
    return {
        one.name: [
            measured(output) | {"right": check.right(writer.text(output), answer)}
            for output, answer in zip(row, expected, strict=True)
        ]
        for one, row in zip(settings, written, strict=True)
    }


def turns(given: argparse.Namespace, settings: list[Penalty]) -> dict[str, Any]:
    """Write a second answer in the same chat, and measure how much of it repeats the first.

    The first answer is the same for all settings: the one that the first setting writes.
    """
    writer = Writer(given.model, given)
    asked = [one["prompt"] for one in writer.short_enough(part_of(read_lines(given.instructions), given.part))]
    first = writer.write([chat_ids(writer.tokenizer, text) for text in asked], settings[:1])[0]
    ended = [(text, output) for text, output in zip(asked, first, strict=True) if output.finish_reason == "stop"]
    chats = [(text, output, follow) for text, output in ended for follow in FOLLOW_UPS]
    prompts = [chat_ids(writer.tokenizer, text, writer.text(output), follow) for text, output, follow in chats]
    chats, prompts = zip(*[pair for pair in zip(chats, prompts, strict=True) if len(pair[1]) < MAX_PROMPT], strict=True)
    written = writer.write(prompts, settings)
    return {
        one.name: [
            measured(output) | {"repeats_8": repeated(output.token_ids, before.token_ids)}
            for output, (_, before, _) in zip(row, chats, strict=True)
        ]
        for one, row in zip(settings, written, strict=True)
    }


def repeated(tokens: Sequence[int], before: Sequence[int], n: int = 8) -> float | None:
    """Return the share of n-grams that also occur in the earlier answer; `None` for an answer that is too short."""
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    known = {tuple(before[i : i + n]) for i in range(len(before) - n + 1)}
    return round(sum(gram in known for gram in grams) / len(grams), 4) if grams else None


# ---------------------------------------------------------------- harm


def harm(given: argparse.Namespace, settings: list[Penalty]) -> dict[str, Any]:
    """Measure bits and right tokens lost on texts, on GSM8K's solutions after their questions, and on copies."""
    from lz_penalty.evaluation.bits import forced_by_each
    from lz_penalty.evaluation.copying import copy_tasks
    from lz_penalty.evaluation.loading import load
    from lz_penalty.evaluation.texts import KINDS, texts

    loaded = load(given.model, dtype=given.dtype)
    tokenizer = loaded.tokenizer
    cases = [(kind, [], text_ids(tokenizer, one.text)[:1024]) for kind in KINDS for one in texts(kind, given.part)]
    for record in part_of(read_lines(given.gsm8k)[: given.limit], given.part) if given.gsm8k else []:
        cases.append(("reasoning", chat_ids(tokenizer, GSM8K.format(**record)), _ids(tokenizer, record["answer"])))
    for task in copy_tasks(given.copies, seed=1 if given.part == "choose" else 2):
        cases.append((f"copy {task.kind}", chat_ids(tokenizer, task.prompt), _ids(tokenizer, task.expected)))
    out: dict[str, Any] = {one.name: [] for one in settings}
    for kind, prompt, ids in cases:
        for one, forced in zip(settings, forced_by_each(loaded, [*prompt, *ids], settings, len(prompt)), strict=True):
            bits = float((forced.penalised - forced.plain).sum())
            row = {
                "kind": kind,
                "tokens": len(forced.plain),
                "right": int(forced.plain_stays.sum()),
                "lost": forced.lost,
            }
            out[one.name].append(row | {"bits": round(bits, 3), "plain": round(float(forced.plain.sum()), 2)})
    return out


def _ids(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False).input_ids


# ---------------------------------------------------------------- command


def device() -> dict[str, Any]:
    """Return the name of the device and vLLM's version."""
    import torch

    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    found = metadata.packages_distributions().get("vllm")
    return {"gpu": name, "vllm": metadata.version(found[0]) if found else None}


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("answers", "problems", "turns", "harm"))
    parser.add_argument("model", help="a folder in Hugging Face's layout")
    parser.add_argument("--out", type=Path, required=True, help="the file of results, JSON")
    parser.add_argument("--part", choices=("choose", "publish", "all"), default="choose")
    parser.add_argument("--settings", nargs="+", help="names of settings; all of them by default")
    parser.add_argument("--instructions", type=Path, help="JSON lines with `id` and `prompt`")
    parser.add_argument("--gsm8k", type=Path, help="JSON lines with `question` and `answer`")
    parser.add_argument("--limit", type=int, default=2_000, help="at most so many problems")
    parser.add_argument("--copies", type=int, default=4, help="copying tasks of each kind")
    parser.add_argument("--cap", type=int, default=1_024, help="the most tokens of an answer")
    parser.add_argument("--batch", type=int, default=768, help="answers that are written at the same time")
    parser.add_argument("--memory", type=float, default=20, help="GiB for vLLM's cache of keys and values")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--texts", type=Path, help="also keep all answers in this file (.jsonl.xz)")
    given = parser.parse_args()
    settings = [penalty(name) for name in given.settings or all_settings()]
    results = globals()[given.what](given, settings)
    plan = {"what": given.what, "model": Path(given.model).name, "part": given.part, "cap": given.cap}
    write_json(given.out, {"plan": plan, "machine": machine(**device()), "results": results})


if __name__ == "__main__":
    main()
