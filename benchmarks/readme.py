"""Write the tables of README.md and other pages from the results: `python -m benchmarks.readme`; `--check` compares."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import (
    detection_tables,
    engine_tables,
    evaluation_tables,
    guard_tables,
    limitation_tables,
    op_tables,
    policy_tables,
    preset_tables,
    problem_tables,
    readme_tables,
)
from benchmarks.tables import results
from benchmarks.workload import ROOT, arguments

CHOSEN, PUBLISHED, TURNS = (f"../../research/presets/results/{name}.json" for name in ("choose", "publish", "turns"))
TABLES: tuple[tuple[str, str, Callable[[dict[str, Any]], list[str]], str], ...] = (  # page, mark, table, results file
    ("README.md", "real-models", readme_tables.in_short, PUBLISHED),
    ("README.md", "real-models-follows", readme_tables.what_follows, PUBLISHED),
    ("README.md", "cost-in-short", op_tables.cost_in_short, "h200.json"),
    ("README.md", "vllm-in-short", engine_tables.vllm_in_short, "vllm.json"),
    ("README.md", "real-models-notes", readme_tables.about_in_short, PUBLISHED),
    ("README.md", "cost-notes", op_tables.about_cost_in_short, "h200.json"),
    ("docs/choosing.md", "glance", preset_tables.at_a_glance, PUBLISHED),
    ("docs/choosing.md", "fields", preset_tables.fields, CHOSEN),
    ("research/presets/README.md", "choice", preset_tables.choice, CHOSEN),
    ("research/presets/README.md", "near-loops", preset_tables.near_loops_by_model, PUBLISHED),
    ("research/presets/README.md", "harm", preset_tables.harm_by_kind, PUBLISHED),
    ("research/presets/README.md", "harm-by-model", preset_tables.harm_by_model, PUBLISHED),
    ("research/presets/README.md", "problems", problem_tables.problems, PUBLISHED),
    ("research/presets/README.md", "turns", problem_tables.turns, TURNS),
    ("research/presets/README.md", "rivals", problem_tables.rivals, CHOSEN),
    ("docs/results.md", "sweep", evaluation_tables.sweep, "sweep.json"),
    (
        "docs/results.md",
        "costs",
        lambda h200: [*op_tables.gpu(h200), "", *op_tables.cpu(results("cpu.json"))],
        "h200.json",
    ),
    ("docs/limitations.md", "asked-for", limitation_tables.asked_for, PUBLISHED),
    ("docs/limitations.md", "weak", limitation_tables.weak, PUBLISHED),
    ("docs/transformers.md", "overhead", engine_tables.overhead, "overhead.json"),
    ("docs/vllm.md", "vllm", engine_tables.vllm, "vllm.json"),
    ("docs/sglang.md", "sglang", engine_tables.sglang, "sglang.json"),
    ("docs/llama_cpp.md", "llama_cpp", engine_tables.llama_cpp, "llama_cpp.json"),
    ("docs/works-with.md", "matrix", engine_tables.matrix, "matrix.json"),
    ("docs/llama_cpp.md", "llama_server", engine_tables.llama_server, "llama_server.json"),
    ("integrations/llama_cpp/README.md", "checks", engine_tables.llama_server_checks, "llama_server.json"),
    ("integrations/llama_cpp/README.md", "speed", engine_tables.llama_server_speed, "llama_server.json"),
    ("integrations/llama_cpp/PROPOSAL.md", "speed", engine_tables.llama_server_speed_in_short, "llama_server.json"),
    ("docs/policy.md", "policy", engine_tables.policy, "policy.json"),
    ("docs/policy.md", "policy-on-models", lambda _: policy_tables.on_models(), "policy.json"),
    ("docs/policy.md", "policy-on-tasks", policy_tables.on_tasks, PUBLISHED),
    ("docs/stopping.md", "stopping-rates", detection_tables.stopping, "labelled.json"),
    ("docs/stopping.md", "detection", detection_tables.watching, "detection.json"),
    ("docs/detect-command.md", "detect-memory", detection_tables.memory, "detect_memory.json"),
    ("docs/detection.md", "outputs", detection_tables.outputs, "capped.json"),
    ("docs/detection.md", "groups", detection_tables.by_group, "capped.json"),
    ("docs/detection.md", "rates", detection_tables.in_short, "labelled.json"),
    ("research/labelled/README.md", "rates", detection_tables.rates, "labelled.json"),
    ("research/labelled/README.md", "capped-groups", detection_tables.capped_groups, "capped.json"),
    ("research/labelled/README.md", "paper20", detection_tables.paper20, "labelled.json"),
    ("research/labelled/README.md", "thresholds", detection_tables.thresholds, "labelled.json"),
    ("research/labelled/README.md", "search-speed", detection_tables.searching, "detection.json"),
    ("docs/guard.md", "guard-rates", guard_tables.rates, "guard.json"),
    ("docs/guard.md", "guard-cost", guard_tables.cost, "guard.json"),
    ("docs/duality.md", "duality", evaluation_tables.duality, "duality.json"),
    ("docs/duality.md", "excess", evaluation_tables.excess, "duality.json"),
    ("docs/duality.md", "partition", evaluation_tables.partition, "duality.json"),
    ("docs/cost.md", "cost", evaluation_tables.cost, "cost.json"),
    ("docs/cost.md", "copies", evaluation_tables.copies, "cost.json"),
)


def replaced(text: str, mark: str, lines: list[str]) -> str:
    """Return the text with new lines between the two comments of this mark."""
    begin, end = f"<!-- {mark}: written by benchmarks/readme.py -->", f"<!-- {mark}: end -->"
    before, rest = text.split(begin)
    return "\n".join([before + begin, "", *lines, "", end]) + rest.split(end)[1]


def main() -> None:
    """Write the pages, or compare them."""
    check = arguments(__doc__).check
    pages: dict[Path, str] = {}
    for page, mark, table, source in TABLES:
        path = ROOT / page
        text = pages.get(path) or path.read_text(encoding="utf-8")
        pages[path] = replaced(text, mark, table(results(source)))
    stale = {path: text for path, text in pages.items() if text != path.read_text(encoding="utf-8")}
    if check:
        if stale:
            names = ", ".join(str(path.relative_to(ROOT)) for path in stale)
            sys.exit(f"{names}: tables differ from benchmarks/results: run python -m benchmarks.readme")
        print(f"{len(TABLES)} tables of {len(pages)} pages are equal to what the results files give.")
        return
    for path, text in stale.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
