"""The table of the default policy on real models, in docs/policy.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.preset_tables import MODELS, machine_of, named_settings, share
from benchmarks.problem_tables import CPU
from benchmarks.tables import paragraph, table
from lz_penalty.evaluation.measures import is_near_loop
from lz_penalty.evaluation.study._offline.files import read_result
from lz_penalty.evaluation.study._offline.summaries import harm_share

PENALTIES = {"guarded": "**guarded**", "policy": "**default policy**"}
OF_FENCED = ("smollm2", "qwen05", "tinyllama", "qwen15")
DAMAGED = "tinyllama"
KINDS = {
    "prose": "prose",
    "markdown": "Markdown",
    "fenced code": "code in a fence",
    "fenced json": "JSON in a fence",
    "copy json": "JSON copied from the prompt",
    "copy table": "a table copied from the prompt",
}

TASKS = {
    ("gsm8k_test", "accuracy"): "problems of GSM8K",
    ("humaneval", "accuracy"): "programs of HumanEval",
    ("json", "accuracy"): "JSON texts by a schema",
    ("copies", "fidelity"): "copying tasks",
}


def on_tasks(data: dict[str, Any], models: Sequence[str] = ("qwen05", "qwen15")) -> list[str]:
    """Return what is right without a penalty, under `guarded` and under the default policy."""
    found = dict(zip(("none", *PENALTIES), (one for _, one in named_settings(data, ["none", *PENALTIES])), strict=True))
    names = {"none": "none", **PENALTIES}
    head = ["", *(f"{MODELS[model]}, {name}" for model in models for name in names.values())]
    rows = [
        [f"{found['none'][models[0]][task]['answers']:,} {title}"]
        + [share(found[penalty], model, task, measure) for model in models for penalty in names]
        for (task, measure), title in TASKS.items()
    ]
    return [*table(head, rows), "", *paragraph(f"Greedy, at most 1,024 tokens. {machine_of(data)}.")]


def on_models(models: Sequence[str] = ("smollm2", "qwen05")) -> list[str]:
    """Return near-loops, tokens per answer and right tokens lost, under `guarded` and under the default policy."""
    columns = [_column(model, penalty) for model in models for penalty in PENALTIES]
    names = ["near-loops", "tokens per answer", *(f"lost: {name}" for name in KINDS.values())]
    rows = [[name, *cells] for name, *cells in zip(names, *columns, strict=True)]
    head = ["", *(f"{MODELS[model]}, {name}" for model in models for name in PENALTIES.values())]
    about, answers = read_result(CPU / f"{models[0]}-instructions-policy.jsonl.xz")
    asked = sum(row["penalty"] == "policy" for row in answers)
    others = " and ".join(MODELS[model] for model in OF_FENCED if model not in models)
    nothing = all(
        row["lost"] == 0 for model in OF_FENCED for row in _harm(model, "fenced") if row["penalty"] == "policy"
    )
    assert nothing  # or the sentence below is wrong
    few, many = (f"{_answers(DAMAGED, penalty)[0]:.1%}" for penalty in PENALTIES)
    told = (
        f"Near-loops and tokens: {asked} everyday instructions with odd numbers, greedy, at most 2,048 tokens. On "
        f"{MODELS[DAMAGED]}, whose weights have two bits, guarded has {few} near-loops and the default policy {many}. Lost: "
        "right tokens that become wrong, in texts that people wrote. Code and JSON follow a line that opens a fence; on "
        f"{others} too, the default policy loses none of them. {about['machine']['cpu']}, vLLM {about['machine']['vllm']}, "
        "bfloat16. `research/presets` has the scripts."
    )
    return [*table(head, rows), "", *paragraph(told)]


def _answers(model: str, penalty: str) -> tuple[float, float]:
    """Return the share of near-loops, and the tokens per answer."""
    _, answers = read_result(CPU / f"{model}-instructions-policy.jsonl.xz")
    mine = [row for row in answers if row["penalty"] == penalty]
    near = sum(is_near_loop(row["distinct_4"]) for row in mine) / len(mine)
    return near, sum(row["tokens"] for row in mine) / len(mine)


def _column(model: str, penalty: str) -> list[str]:
    near, tokens = _answers(model, penalty)
    texts = [row for what in ("policy", "fenced") for row in _harm(model, what) if row["penalty"] == penalty]
    return [f"{near:.1%}", f"{tokens:.0f}", *(_lost(texts, kind) for kind in KINDS)]


def _harm(model: str, what: str) -> list[dict[str, Any]]:
    return read_result(CPU / f"{model}-harm-{what}.jsonl.xz")[1]


def _lost(texts: list[dict[str, Any]], kind: str) -> str:
    found = harm_share(texts, [kind])
    assert found is not None
    return f"{found.mean:.1%}"
