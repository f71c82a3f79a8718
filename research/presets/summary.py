"""Summarise the files that `measure` and `harm` wrote, and apply the rule: `python -m research.presets.summary FILES`.

FILES may be summaries too. The table shows the best settings of each family; `*` marks those that qualify.

The rule: among the settings with no degenerate answer and at most 1 % near-loops on every model, take the one with the
least harm, which is the mean share of right tokens lost over prose, code and Markdown. If no setting qualifies, take the one
with the fewest near-loops.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lz_penalty.evaluation.measures import is_near_loop
from research.presets.settings import family_of

RULE_KINDS = ("prose", "code", "markdown")
MOST_NEAR_LOOPS = 0.01
MOST_BITS = 1_000.0
HARM = "harm"

Row = dict[str, Any]


# ---------------------------------------------------------------- means


def of_answers(rows: Sequence[Row]) -> Row:
    """Return the means over answers."""
    means: Row = {
        "answers": len(rows),
        "degenerate": _mean(row["degenerate"] for row in rows),
        "loops": _mean(row["loop"] for row in rows),
        "near_loops": _mean(is_near_loop(row["distinct_4"]) for row in rows),
        "capped": _mean(row["capped"] for row in rows),
        "distinct_4": _mean(row["distinct_4"] for row in rows),
        "tokens": round(sum(row["tokens"] for row in rows) / len(rows), 1),
    }
    if "right" in rows[0]:
        means["accuracy"] = _mean(row["right"] for row in rows)
    if "repeats_8" in rows[0]:
        means["repeats_8"] = _mean(row["repeats_8"] for row in rows if row["repeats_8"] is not None)
    return means


def of_harm(rows: Sequence[Row]) -> Row:
    """Return, for each kind of text, the cost in bits per token and the share of right tokens that are lost."""
    kinds: dict[str, Row] = {}
    for kind in dict.fromkeys(row["kind"] for row in rows):
        group = [row for row in rows if row["kind"] == kind]
        tokens, right = sum(row["tokens"] for row in group), sum(row["right"] for row in group)
        kinds[kind] = {
            "tokens": tokens,
            "right": right,
            "bits": _bits(sum(row["bits"] for row in group) / tokens),
            "lost": round(sum(row["lost"] for row in group) / max(right, 1), 5),
        }
    return kinds


def _bits(value: float) -> float | None:
    """Return a cost in bits per token; `None` if it is beyond measure, because a right token is all but forbidden."""
    return round(value, 4) if value < MOST_BITS else None


def paired(rows: Sequence[Row], plain: Sequence[Row]) -> Row:
    """Return how many problems only one of the two settings solved, and McNemar's exact p-value."""
    gained = sum(bool(a["right"]) and not b["right"] for a, b in zip(rows, plain, strict=True))
    lost = sum(bool(b["right"]) and not a["right"] for a, b in zip(rows, plain, strict=True))
    n = gained + lost
    tail = sum(math.comb(n, k) for k in range(min(gained, lost) + 1)) / 2**n
    return {"gained": gained, "lost": lost, "p": round(min(1.0, 2 * tail), 4)}


def _mean(values: Iterable[float]) -> float:
    given = [float(value) for value in values]
    return round(sum(given) / len(given), 5) if given else 0.0


# ---------------------------------------------------------------- files


def summarised(files: Iterable[Path]) -> Row:
    """Return `{setting: {model: {what: means}}}` with the jobs and machines of the files."""
    settings: dict[str, Any] = {}
    plans = []
    for path in files:
        if path.suffix == ".json":  # a summary
            data = json.loads(path.read_text(encoding="utf-8"))
            plans += data["plans"]
            for name, models in data["settings"].items():
                for model, parts in models.items():
                    settings.setdefault(name, {}).setdefault(model, {}).update(parts)
            continue
        with lzma.open(path, "rt", encoding="utf-8") as file:
            about, *rows = map(json.loads, file)
        what = what_of(about["job"])
        plans.append({"what": what} | about | {"job": {k: v for k, v in about["job"].items() if k != "settings"}})
        by_setting: dict[str, list[Row]] = {}
        for row in rows:
            by_setting.setdefault(row["penalty"], []).append(row)
        for name, group in by_setting.items():
            means = of_harm(group) if what == HARM else of_answers(group)
            if "accuracy" in means and name != "none" and "none" in by_setting:
                means["paired"] = paired(group, by_setting["none"])
            settings.setdefault(name, {}).setdefault(about["model"], {})[what] = means
    return {"plans": plans, "settings": settings}


def write(path: Path, summary: Row) -> None:
    """Write a summary: a line per file that was measured, and a line per setting."""
    plans = ",\n".join(json.dumps(plan) for plan in summary["plans"])
    settings = ",\n".join(f"{json.dumps(name)}: {json.dumps(one)}" for name, one in summary["settings"].items())
    path.write_text(f'{{"plans": [\n{plans}\n],\n"settings": {{\n{settings}\n}}}}\n', encoding="utf-8")


def what_of(job: Row) -> str:
    """Return what a job measures: `harm`, or the name of its file of prompts.

    >>> what_of({"prompts": "data/instructions.jsonl", "turn": 2, "temperature": 0.6})
    'instructions, second turn, temperature 0.6'
    """
    if "prompts" not in job:
        return HARM
    name = Path(job["prompts"]).name.partition(".")[0]
    turn = ", second turn" if job.get("turn") == 2 else ""
    return name + turn + (f", temperature {job['temperature']:g}" if job.get("temperature") else "")


# ---------------------------------------------------------------- the rule


def harm_of(models: Row) -> float:
    """Return the mean share of right tokens lost over prose, code and Markdown, and over models."""
    return _mean(model[HARM][kind]["lost"] for model in models.values() for kind in RULE_KINDS)


def near_loops(model: Row) -> float:
    """Return the share of near-loops among all answers of a model."""
    return _share(model, "near_loops")


def qualifies(models: Row) -> bool:
    """Return whether no answer is degenerate and at most 1 % are near-loops, on every model."""
    return all(_share(model, "degenerate") == 0 and near_loops(model) <= MOST_NEAR_LOOPS for model in models.values())


def _share(model: Row, key: str) -> float:
    written = [means for what, means in model.items() if what != HARM]
    return sum(means[key] * means["answers"] for means in written) / sum(means["answers"] for means in written)


def ranked(settings: Row) -> list[str]:
    """Return the settings whose answers and harm were measured on every model, the best by the rule first.

    A setting that was not measured on all prompts was already worse than one that qualifies, so it comes after those.
    """
    whole = {(model, what) for one in settings.values() for model, parts in one.items() for what in parts}

    def key(name: str) -> tuple[float, ...]:
        models = settings[name]
        near = _mean(near_loops(model) for model in models.values())
        tokens = _mean(_share(model, "tokens") for model in models.values())
        good = _measured(models) == whole and qualifies(models)
        return (0, harm_of(models), near, tokens) if good else (1, near, harm_of(models), tokens)

    everywhere = {model for model, _ in whole}
    return sorted((name for name, one in settings.items() if _with_harm(one) == everywhere), key=key)


def _measured(models: Row) -> set[tuple[str, str]]:
    return {(model, what) for model, parts in models.items() for what in parts}


def _with_harm(models: Row) -> set[str]:
    return {model for model, parts in models.items() if HARM in parts and len(parts) > 1}


def best(settings: Row, gates: int = 1) -> list[str]:
    """Return the best setting of each family, and so many gates."""
    chosen: dict[str, list[str]] = {}
    for name in ranked(settings):
        chosen.setdefault(family_of(name), []).append(name)
    return [name for family, names in chosen.items() for name in names[: gates if family == "gate" else 1]]


# ---------------------------------------------------------------- command


def print_table(settings: Row, gates: int) -> None:
    """Print the best settings of each family, best first."""
    shown: dict[str, int] = {}
    for name in ranked(settings):
        family = family_of(name)
        shown[family] = shown.get(family, 0) + 1
        if shown[family] > (gates if family == "gate" else 3):
            continue
        models = settings[name]
        print(f"{'*' if qualifies(models) else ' '} {harm_of(models):.2%} {family:12} {name}")
        for model, parts in models.items():
            print(f"       {model:12}", end="")
            for what, means in parts.items():
                if what == HARM:
                    print(" ".join(f"{kind[:9]} {one['lost']:.1%}" for kind, one in means.items()), end="")
                else:
                    print(
                        f"{what[:12]}: {means['degenerate']:.1%} {means['loops']:.1%} {means['near_loops']:.1%} "
                        f"cap {means['capped']:.0%} d4 {means['distinct_4']:.2f} tok {means['tokens']:.0f} | ",
                        end="",
                    )
            print()


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, help="write the summary to this file, JSON")
    parser.add_argument("--gates", type=int, default=12, help="how many settings of the family `gate` to show")
    parser.add_argument("--best", action="store_true", help="print only the names of the best settings, as JSON")
    given = parser.parse_args()
    summary = summarised(given.files)
    if given.out:
        write(given.out, summary)
    if given.best:
        print(json.dumps(best(summary["settings"], given.gates)))
    else:
        print_table(summary["settings"], given.gates)


if __name__ == "__main__":
    main()
