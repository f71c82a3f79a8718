"""Summarise the files that `measure` wrote, and apply the rule: `python -m research.presets.summary FILES --out FILE`.

FILES may be summaries too. The table shows the best settings of each family; `*` marks those that qualify.

The rule: among the settings with no degenerate answer and at most 1 % near-loops on every model, take the one with the
least harm, which is the mean share of right tokens lost over prose, code and Markdown. If no setting qualifies, take the one
with the fewest near-loops.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.workload import write_json
from lz_penalty.evaluation.measures import NEAR_LOOP
from research.presets.measure import NEAR_LOOP_TOKENS
from research.presets.settings import family_of

RULE_KINDS = ("prose", "code", "markdown")
MOST_NEAR_LOOPS = 0.01
MOST_BITS = 1_000.0


def of_answers(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the means over answers."""
    means: dict[str, Any] = {
        "answers": len(rows),
        "degenerate": _mean(row["degenerate"] for row in rows),
        "loops": _mean(row["loop"] for row in rows),
        "near_loops": _mean(is_near_loop(row) for row in rows),
        "capped": _mean(row["capped"] for row in rows),
        "distinct_4": _mean(row["distinct_4"] for row in rows),
        "tokens": round(sum(row["tokens"] for row in rows) / len(rows), 1),
    }
    if "right" in rows[0]:
        means["accuracy"] = _mean(row["right"] for row in rows)
    if "repeats_8" in rows[0]:
        given = [row["repeats_8"] for row in rows if row["repeats_8"] is not None]
        means["repeats_8"] = _mean(given)
        means["repeats_half"] = _mean(share >= 0.5 for share in given)
    return means


def is_near_loop(row: dict[str, Any]) -> bool:
    """Return whether an answer is long and says little new."""
    return row["distinct_4"] < NEAR_LOOP and row["tokens"] >= NEAR_LOOP_TOKENS


def of_harm(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return, for each kind of text, the cost in bits per token and the share of right tokens that are lost."""
    kinds: dict[str, dict[str, Any]] = {}
    for kind in dict.fromkeys(row["kind"] for row in rows):
        group = [row for row in rows if row["kind"] == kind]
        tokens, right = sum(row["tokens"] for row in group), sum(row["right"] for row in group)
        kinds[kind] = {
            "tokens": tokens,
            "bits": _bits(sum(row["bits"] for row in group) / tokens),
            "lost": round(sum(row["lost"] for row in group) / max(right, 1), 5),
        }
    return kinds


def _bits(value: float) -> float | None:
    """Return a cost in bits per token; `None` if it is beyond measure, because a right token is all but forbidden."""
    return round(value, 4) if value < MOST_BITS else None


def paired(rows: list[dict[str, Any]], plain: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how many problems only one of the two settings solved, and McNemar's exact p-value."""
    gained = sum(bool(a["right"]) and not b["right"] for a, b in zip(rows, plain, strict=True))
    lost = sum(bool(b["right"]) and not a["right"] for a, b in zip(rows, plain, strict=True))
    n = gained + lost
    tail = sum(math.comb(n, k) for k in range(min(gained, lost) + 1)) / 2**n
    return {"gained": gained, "lost": lost, "p": round(min(1.0, 2 * tail), 4)}


def summarised(files: Iterable[Path]) -> dict[str, Any]:
    """Return `{setting: {model: {what: means}}}` with the plans and machines of the files."""
    settings: dict[str, Any] = {}
    plans = []
    for path in files:
        data = json.loads(path.read_text(encoding="utf-8"))
        if "settings" in data:  # a summary
            plans += data["plans"]
            for name, models in data["settings"].items():
                for model, parts in models.items():
                    settings.setdefault(name, {}).setdefault(model, {}).update(parts)
            continue
        plan, results = data["plan"], data["results"]
        plans.append(plan | {"machine": data["machine"]})
        for name, rows in results.items():
            means = of_harm(rows) if plan["what"] == "harm" else of_answers(rows)
            if plan["what"] == "problems" and name != "none" and "none" in results:
                means["paired"] = paired(rows, results["none"])
            settings.setdefault(name, {}).setdefault(plan["model"], {})[plan["what"]] = means
    return {"plans": plans, "settings": settings}


def harm_of(models: dict[str, Any]) -> float:
    """Return the mean share of right tokens lost over prose, code and Markdown, and over models."""
    return _mean(model["harm"][kind]["lost"] for model in models.values() for kind in RULE_KINDS)


def qualifies(models: dict[str, Any]) -> bool:
    """Return whether no answer is degenerate and at most 1 % are near-loops, on every model."""
    return all(
        model["answers"]["degenerate"] == 0 and model["answers"]["near_loops"] <= MOST_NEAR_LOOPS
        for model in models.values()
    )


def ranked(settings: dict[str, Any]) -> list[str]:
    """Return the settings that were measured on every model, the best by the rule first."""
    models = {model for of_setting in settings.values() for model in of_setting}
    settings = {name: one for name, one in settings.items() if one.keys() == models and _complete(one)}

    def key(name: str) -> tuple[float, ...]:
        models = settings[name]
        near = _mean(model["answers"]["near_loops"] for model in models.values())
        tokens = _mean(model["answers"]["tokens"] for model in models.values())
        return (0, harm_of(models), near, tokens) if qualifies(models) else (1, near, harm_of(models), tokens)

    return sorted(settings, key=key)


def _complete(models: dict[str, Any]) -> bool:
    return all({"answers", "harm"} <= model.keys() for model in models.values())


def _mean(values: Iterable[float]) -> float:
    given = [float(value) for value in values]
    return round(sum(given) / len(given), 5) if given else 0.0


def print_table(settings: dict[str, Any]) -> None:
    """Print the best settings of each family, best first."""
    shown: dict[str, int] = {}
    for name in ranked(settings):
        family = family_of(name)
        shown[family] = shown.get(family, 0) + 1
        if shown[family] > (12 if family == "gate" else 3):
            continue
        models = settings[name]
        cells = []
        for model in models.values():
            a = model["answers"]
            cells.append(
                f"{a['degenerate']:.1%} {a['loops']:.1%} {a['near_loops']:.1%} cap {a['capped']:.0%} "
                f"d4 {a['distinct_4']:.2f} tok {a['tokens']:.0f} | "
                + " ".join(f"{kind[:5]} {one['lost']:.1%}" for kind, one in model["harm"].items())
            )
        print(f"{'*' if qualifies(models) else ' '} {harm_of(models):.2%} {family:12} {name}")
        for cell in cells:
            print("      ", cell)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, help="write the summary to this file, JSON")
    parser.add_argument(
        "--best", type=int, help="print only the names: the best setting of each family, and so many gates"
    )
    given = parser.parse_args()
    summary = summarised(given.files)
    if given.out:
        write_json(given.out, summary)
    if given.best is not None:
        best: dict[str, list[str]] = {}
        for name in ranked(summary["settings"]):
            best.setdefault(family_of(name), []).append(name)
        for family, names in best.items():
            print("\n".join(names[: given.best if family == "gate" else 1]))
    else:
        print_table(summary["settings"])


if __name__ == "__main__":
    main()
