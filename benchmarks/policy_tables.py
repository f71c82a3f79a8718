"""The table of the default policy on real models, in docs/policy.md."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from benchmarks.preset_tables import MISSING, MODELS
from benchmarks.problem_tables import CPU
from benchmarks.tables import paragraph, table
from lz_penalty.evaluation.measures import is_near_loop
from lz_penalty.evaluation.study._offline.files import read_result
from lz_penalty.evaluation.study._offline.summaries import harm_share

PENALTIES = {"guarded": "guarded", "policy": "default policy"}
KINDS = {
    "prose": "prose",
    "markdown": "Markdown",
    "fenced code": "code in a fence",
    "fenced json": "JSON in a fence",
    "copy json": "JSON copied from the prompt",
    "copy table": "a table copied from the prompt",
}


def on_models(models: tuple[str, ...]) -> list[str]:
    """Return near-loops, tokens per answer and right tokens lost, under `guarded` and under the default policy."""
    columns, machine, answers = [], {}, 0
    for model in models:
        about, written = read_result(CPU / f"{model}-instructions-policy.jsonl.xz")
        machine = about["machine"]
        harmed = [
            row
            for task in ("policy", "fenced")
            for row in read_result(CPU / f"{model}-harm-{task}.jsonl.xz")[1]
        ]
        for penalty in PENALTIES:
            mine = [row for row in written if row["penalty"] == penalty]
            answers = len(mine)
            lost = defaultdict(list)
            for row in harmed:
                if row["penalty"] == penalty:
                    lost[row["kind"]].append(row)
            near = sum(is_near_loop(row["distinct_4"]) for row in mine) / answers
            cells = [f"{near:.1%}", f"{sum(row['tokens'] for row in mine) / answers:.0f}"]
            columns.append([*cells, *(_share(lost[kind]) for kind in KINDS)])
    names = ["near-loops", "tokens per answer", *(f"lost: {name}" for name in KINDS.values())]
    rows = [[name, *cells] for name, cells in zip(names, zip(*columns, strict=True), strict=True)]
    head = ["", *(f"{MODELS[model]}, {name}" for model in models for name in PENALTIES.values())]
    about = (
        f"Near-loops and tokens: {answers} everyday instructions with odd numbers, greedy, at most 2,048 tokens. Lost: right "
        "tokens that become wrong, in texts that people wrote. JSON and code begin with the line that opens a fence. "
        f"{machine['cpu']}, vLLM {machine['vllm']}, bfloat16. `research/presets` has the scripts."
    )
    return [*table(head, rows), "", *paragraph(about)]


def _share(rows: list[dict[str, Any]]) -> str:
    return f"{harm_share(rows):.1%}" if rows else MISSING
