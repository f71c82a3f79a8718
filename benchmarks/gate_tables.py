"""The table of a gate over a longer window, which was found after the choice of `guarded`, in research/presets/README.md."""

from __future__ import annotations

from typing import Any

from benchmarks.preset_tables import label
from benchmarks.problem_tables import CPU
from benchmarks.tables import paragraph, table
from lz_penalty import LZPenaltyConfig
from lz_penalty.evaluation.penalties import penalty
from lz_penalty.evaluation.study._offline.files import read_result
from research.presets.summary import HARM, of_answers, of_harm, paired

NEXT = (
    "paper:0.5,lookback=adjacent,window_size=384,min_match_length=4,escalation=1,"
    "gate_low=0.4,gate_high=0.5,gate_window=384,gate_from=48,include_prompt=0"
)
MODELS = ("smollm2", "tinyllama")
TASKS = ("instructions", "gsm8k_train")
KINDS = ("prose", "code", "markdown", "json")


def longer_gate(data: dict[str, Any]) -> list[str]:
    """Return the rows of no penalty, of `guarded` and of the longer gate: loops, harm, and problems solved."""
    settings = data["settings"]
    chosen = next(name for name in settings if penalty(name).config == LZPenaltyConfig.guarded())
    _, answers = read_result(CPU / "qwen15-gsm8k_train.jsonl.xz")
    plain = [row for row in answers if row["penalty"] == "none"]
    rows = []
    for name, found, solved in (
        ("none", settings["none"], "none"),
        ("**guarded**", settings[chosen], "guarded"),
        (label(NEXT), _measured(), NEXT),
    ):
        near = [
            sum(found[model][task]["near_loops"] * found[model][task]["answers"] for task in TASKS) for model in MODELS
        ]
        lost = [sum(found[model][HARM][kind]["lost"] for model in MODELS) / len(MODELS) for kind in KINDS]
        ours = [row for row in answers if row["penalty"] == solved]
        rows.append([name, *(f"{count:.0f}" for count in near), *(f"{one:.1%}" for one in lost), _solved(ours, plain)])
    about = (
        "Near-loops: of 287 answers, to 87 instructions and 200 training problems. Lost: right tokens, mean of both models. "
        f"Solved: by Qwen-1.5B, of {len(plain)} training problems of GSM8K (the first with even numbers), greedy, at most "
        "1,024 tokens. In brackets: problems that only the penalised model solved (+) or only the model without a penalty (-), "
        "and answers that changed. The near-loops and losses of the first two rows are those of the choice, from an H200 with "
        "vLLM 0.26.0. All other numbers are from a CPU with vLLM 0.32.0, bfloat16."
    )
    columns = ["penalty", "near-loops, SmolLM2", "TinyLlama", "lost: prose", "code", "Markdown", "JSON", "solved"]
    return [*table(columns, rows), "", *paragraph(about)]


def _measured() -> dict[str, Any]:
    """Return the results of the longer gate in the form of a summary."""
    found: dict[str, Any] = {}
    for model in MODELS:
        for what in (*TASKS, HARM):
            _, rows = read_result(CPU / f"{model}-{what}-longer-gate.jsonl.xz")
            ours = [row for row in rows if row["penalty"] == NEXT]
            found.setdefault(model, {})[what] = of_harm(ours) if what == HARM else of_answers(ours)
    return found


def _solved(ours: list[dict[str, Any]], plain: list[dict[str, Any]]) -> str:
    if ours == plain:
        return f"{sum(row['right'] for row in plain)}"
    pair = paired(ours, plain)
    changed = sum(
        a["tokens"] != b["tokens"] or a["distinct_4"] != b["distinct_4"] for a, b in zip(ours, plain, strict=True)
    )
    return f"{sum(row['right'] for row in ours)} (+{pair['gained']} -{pair['lost']}; {changed} changed)"
