"""The table of a gate over a longer window, which was found after the choice of `guarded`, in research/presets/README.md."""

from __future__ import annotations

from typing import Any

from benchmarks.preset_tables import KINDS, label, named_settings
from benchmarks.problem_tables import CPU, changed
from benchmarks.tables import paragraph, table
from lz_penalty.evaluation.study._offline.files import read_result
from research.presets.summary import HARM, paired, summarised

NEXT = (
    "paper:0.5,lookback=adjacent,window_size=384,min_match_length=4,escalation=1,"
    "gate_low=0.4,gate_high=0.5,gate_window=384,gate_from=48,include_prompt=0"
)
MODELS = ("smollm2", "tinyllama")
TASKS = ("instructions", "gsm8k_train")


def longer_gate(data: dict[str, Any]) -> list[str]:
    """Return the rows of no penalty, of `guarded` and of the longer gate: loops, harm, and problems solved."""
    (_, none), (_, chosen) = named_settings(data, ["none", "guarded"])
    longer = summarised(sorted(CPU.glob("*-longer-gate.jsonl.xz")))["settings"][NEXT]
    _, answers = read_result(CPU / "qwen15-gsm8k_train.jsonl.xz")
    plain = [row for row in answers if row["penalty"] == "none"]
    rows = []
    for name, found, solved in (
        ("none", none, "none"),
        ("**guarded**", chosen, "guarded"),
        (label(NEXT), longer, NEXT),
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
    columns = ["penalty", "near-loops, SmolLM2", "TinyLlama", *(f"lost: {kind}" for kind in KINDS.values()), "solved"]
    return [*table(columns, rows), "", *paragraph(about)]


def _solved(ours: list[dict[str, Any]], plain: list[dict[str, Any]]) -> str:
    if ours == plain:
        return f"{sum(row['right'] for row in plain)}"
    pair = paired(ours, plain)
    solved = sum(row["right"] for row in ours)
    return f"{solved} (+{pair['gained']} -{pair['lost']}; {changed(ours, plain)} changed)"
