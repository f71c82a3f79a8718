"""The README's table of benefit and harm on real models, and its footnotes."""

from __future__ import annotations

import csv
from statistics import mean
from typing import Any

from benchmarks.preset_tables import (
    CHAT_MODELS,
    GSM8K,
    INSTRUCTIONS,
    KINDS,
    MODELS,
    READERS,
    STUDY,
    chat_near_loops,
    label,
    lost_by_kind,
    machine_of,
    named_settings,
    remark_on,
    share,
)
from benchmarks.tables import bullets, table
from lz_penalty.evaluation.study._offline.differences import UNCLEAR
from lz_penalty.evaluation.study._offline.files import read_result
from research.presets.summary import HARM

IN_SHORT = [
    "none",
    "guarded",
    "policy",
    "dry:0.8,allowed_length=2",
    "dry:1.6,allowed_length=2,breakers=usual",
    "no-repeat-ngram:4",
    "repetition:1.1",
    "repetition:1.3",
    "frequency:1.0",
    "paper:0.15",
]
IN_SHORT_LOST = ("prose", "code", "json")
IN_SHORT_RIGHT = {
    ("copies", "fidelity"): "copies",
    (GSM8K, "accuracy"): "GSM8K",
    ("humaneval", "accuracy"): "HumanEval",
}
SAVES = {"smollm2": "often loops", "qwen15": "rarely loops"}
ON_QWEN = ["guarded", "dry:0.8,allowed_length=2", "repetition:1.1", "paper:0.15"]


def in_short(data: dict[str, Any]) -> list[str]:
    """Return the README's table: loops of the chat models, harm, and what Qwen-1.5B gets right."""
    rows = []
    for name, found in named_settings(data, IN_SHORT):
        lost = [f"{lost_by_kind(found, kind):.1%}" for kind in IN_SHORT_LOST]
        right = [share(found, "qwen15", *measure) for measure in IN_SHORT_RIGHT]
        rows.append([label(name), f"{chat_near_loops(found):.1%}", *lost, *right])
    lost_columns = (f"lost: {KINDS[kind]}" for kind in IN_SHORT_LOST)
    return table(["penalty", "**near-loops**", *lost_columns, *IN_SHORT_RIGHT.values()], rows)


def about_in_short(data: dict[str, Any]) -> list[str]:
    """Return the README's footnotes on that table."""
    none = data["settings"]["none"]
    count = none["smollm2"][INSTRUCTIONS]["answers"]
    chat, readers = (", ".join(MODELS[model] for model in models) for models in (CHAT_MODELS, READERS))
    gemma = {
        name: found["gemma"][INSTRUCTIONS]["near_loops"]
        for name, (_, found) in zip(("none", "guarded"), named_settings(data, ["none", "guarded"]))
    }
    there = [
        f"{label(name).strip('*')} {found['qwen15'][HARM]['code']['lost']:.1%} and {found['qwen15'][HARM]['json']['lost']:.1%}"
        for name, found in named_settings(data, ON_QWEN)
    ]
    points = [
        f"**Near-loops**: in these answers, less than half of the sequences of four tokens are different. {count} everyday "
        f"instructions, greedy, at most 2,048 tokens. Mean of {chat}.",
        "**Lost**: tokens that greedy decoding predicts correctly without the penalty and wrongly with it. "
        f"Mean of {readers}. On Qwen-1.5B, these penalties lose less. Code and JSON there: {'; '.join(there)}.",
        f"**Copies, GSM8K, HumanEval**: Qwen-1.5B, greedy, at most 1,024 tokens. {none['qwen15']['copies']['answers']} copying "
        f"tasks, {none['qwen15'][GSM8K]['answers']:,} test problems of GSM8K, {none['qwen15']['humaneval']['answers']} of "
        "HumanEval. vLLM does not always write the same greedy answer twice. Where `guarded` changes nothing, the answer "
        "without a penalty is taken again, so chance adds less to its rows than to the others.",
        "**Best settings**: the tuning data chose one setting of each family for these measurements, and the other rows are "
        "usual settings. With all tuning prompts, n-gram ban 6 would have been chosen instead of 4 "
        "([rivals](research/presets/README.md#rivals-that-answered-the-problems-later)).",
        "**Models**: all weights are quantised to about 4 bits, and those of TinyLlama to 2 bits ([files and "
        "sha256](research/studies/real/report.md)). Qwen is Qwen2.5-Coder. "
        f"Gemma is a base model, so its near-loops are not in the mean: none {gemma['none']:.1%}, guarded "
        f"{gemma['guarded']:.1%}.",
        f"**Machine**: {machine_of(data)}. {remark_on(data)}".strip(),
    ]
    return bullets(points)


def what_follows(data: dict[str, Any]) -> list[str]:
    """Return what `guarded` does to right answers, and what it saves."""
    _, guarded = named_settings(data, ["guarded"])[0]
    told = {
        task: "; it ".join(
            f"lost {guarded[model][task]['paired']['lost']} and gained {guarded[model][task]['paired']['gained']} on "
            f"{MODELS[model]}"
            for model in ("qwen15", "qwen05")
        )
        for task in (GSM8K, "humaneval")
    }
    counts = {task: guarded["qwen15"][task]["answers"] for task in told}
    saved = ", and ".join(f"{_time_saved(model)}, which {loops}" for model, loops in SAVES.items())
    points = [
        f"**Accuracy**: `guarded` solves about as many problems as no penalty. Of {counts[GSM8K]:,} test problems of "
        f"GSM8K, greedy, it {told[GSM8K]}. Of {counts['humaneval']} programs of HumanEval it "
        f"{told['humaneval']}. At temperature 0.6, GSM8K changes by {_sampled('qwen15')} on {MODELS['qwen15']} and "
        f"by {_sampled('qwen05')} on {MODELS['qwen05']}; neither is established "
        "([all intervals](research/studies/real/report.md#right-answers)).",
        f"**Savings**: vLLM answered 175 everyday requests in one batch. `guarded` took {saved}. Half of these requests had "
        "a part in the choice of `guarded` ([numbers](research/studies/real/report.md#what-it-saves)).",
    ]
    return bullets(points)


def _sampled(model: str) -> str:
    """Return by how much `guarded` changes the right answers to GSM8K at temperature 0.6, in points with its interval."""
    with (STUDY.parent / "tables" / "differences.csv").open(encoding="utf-8") as file:
        (found,) = [
            row
            for row in csv.DictReader(file)
            if (row["task"], row["measure"], row["model"], row["sampling"]) == ("GSM8K", "right", model, "0.6")
            and label(row["penalty"]) == "**guarded**"
        ]
    assert found["called"] == UNCLEAR  # or the sentence is wrong
    change, low, high = (100 * float(found[key]) for key in ("change", "low", "high"))
    return f"{change:+.1f} points ({low:+.1f} to {high:+.1f})"


def _time_saved(model: str) -> str:
    """Return by how much `guarded` shortens the time of a whole batch, in words: the mean of the runs, and each run."""
    _, rows = read_result(STUDY / f"{model}-savings-t0.jsonl.xz")
    seconds = {
        label(name).strip("*"): [row["seconds"] for row in rows if row["penalty"] == name]
        for name in {row["penalty"] for row in rows}
    }
    whole = 1 - mean(seconds["guarded"]) / mean(seconds["none"])
    runs = " and ".join(f"{1 - a / b:.0%}" for a, b in zip(seconds["guarded"], seconds["none"], strict=True))
    return f"{whole:.0%} less time on {MODELS[model]} (runs: {runs})"
