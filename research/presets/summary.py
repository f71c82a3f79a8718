"""Summarise the files that `measure` and `harm` wrote, and apply the rule: `python -m research.presets.summary FILES`.

FILES may be summaries too. The table shows the best settings of each family; its heading explains the columns. The rule is that
of `lz_penalty.evaluation.study._offline.choice`.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lz_penalty.evaluation.study._offline.choice import (
    differ,
    harm_of,
    near_loops,
    of_answers,
    of_harm,
    qualifies,
    ranked,
)
from lz_penalty.evaluation.study._offline.files import read_result
from lz_penalty.evaluation.study._offline.plan import BATCH, HARM
from research.presets.settings import family_of

__all__ = [
    "HARM",
    "best",
    "changed",
    "harm_of",
    "keeps_problems",
    "near_loops",
    "of_answers",
    "of_harm",
    "paired",
    "qualifies",
    "ranked",
    "solved",
    "summarised",
]

Row = dict[str, Any]
MOST_PROBLEMS_LOST = 0.01  # of those that were asked
HEADING = """\
First line of a setting: * if it qualifies by the rule, right tokens lost (mean over models, prose, code and Markdown), family,
name. Then a line for each model, with these numbers of each task: the shares of degenerate answers (D), loops (L), near-loops
(N) and answers that were cut off (cap), the share of different 4-grams (d4), tokens per answer (tok). At the end of the line:
right tokens lost, by kind of text.
"""


def paired(rows: Sequence[Row], plain: Sequence[Row]) -> Row:
    """Return how many problems only one of the two settings solved, and McNemar's exact p-value."""
    gained = sum(bool(a["right"]) and not b["right"] for a, b in zip(rows, plain, strict=True))
    lost = sum(bool(b["right"]) and not a["right"] for a, b in zip(rows, plain, strict=True))
    n = gained + lost
    tail = sum(math.comb(n, k) for k in range(min(gained, lost) + 1)) / 2**n
    return {"gained": gained, "lost": lost, "p": round(min(1.0, 2 * tail), 4)}


def changed(rows: Sequence[Row], plain: Sequence[Row]) -> int:
    """Return how many answers a penalty changed, as far as their length and their 4-grams show it."""
    return sum(differ(a, b) for a, b in zip(rows, plain, strict=True))


def keeps_problems(found: Row) -> bool:
    """Return whether a setting loses at most 1 % of the problems: those lost less those gained."""
    return found["lost"] - found["gained"] <= MOST_PROBLEMS_LOST * found["problems"]


# ---------------------------------------------------------------- files


def solved(files: Iterable[Path]) -> dict[str, Row]:
    """Return for each setting how many problems it gained and lost, and how many answers it changed.

    Each file has the answers without a penalty too: a setting is compared with those of its own file.
    """
    settings: dict[str, Row] = {}
    for path in files:
        _, rows = read_result(path)
        groups: dict[str, list[Row]] = {}
        for row in rows:
            groups.setdefault(row["penalty"], []).append(row)
        plain = groups.pop("none")
        for name, group in groups.items():
            counts = {"changed": changed(group, plain), "problems": len(group)}
            settings[name] = paired(group, plain) | counts
    return settings


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
        about, rows = read_result(path)
        if about["job"].get("what") == BATCH:  # wall times
            continue
        what = what_of(about["job"])
        by_setting: dict[str, list[Row]] = {}
        for row in rows:
            by_setting.setdefault(row["penalty"], []).append(row)
        plans.append({"what": what} | about | {"job": about["job"] | {"settings": list(by_setting)}})
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


def best(settings: Row, gates: int = 1) -> list[str]:
    """Return the best setting of each family, and so many gates."""
    chosen: dict[str, list[str]] = {}
    for name in ranked(settings):
        chosen.setdefault(family_of(name), []).append(name)
    return [name for family, names in chosen.items() for name in names[: gates if family == "gate" else 1]]


# ---------------------------------------------------------------- command


def print_table(settings: Row, gates: int) -> None:
    """Print a heading that explains the columns, then the best settings of each family, best first."""
    print(HEADING)
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
                    print(" ".join(f"{kind} {one['lost']:.1%}" for kind, one in means.items()), end="")
                else:
                    print(
                        f"{what[:12]}: D {means['degenerate']:.1%} L {means['loops']:.1%} N {means['near_loops']:.1%} "
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
