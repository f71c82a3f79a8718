"""The tables of docs/detection.md, from results/labelled.json; benchmarks/readme.py writes them."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Callable
from typing import Any

STRICT = ("tables", "code", "arithmetic", "JSON")  # groups in which `tandem` must flag nothing
KINDS = ("tandem", "drift", "counter", "edited", "left")
Row = dict[str, Any]


def wilson(hits: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a share.

    >>> [round(end, 3) for end in wilson(0, 100)]
    [0.0, 0.037]
    """
    share, square = hits / total, z * z / total
    middle = (share + square / 2) / (1 + square)
    half = z / (1 + square) * math.sqrt(share * (1 - share) / total + square / (4 * total))
    return max(0.0, middle - half), min(1.0, middle + half)


def share(rows: list[Row], places: int = 0) -> str:
    """A share with its interval in per cent, or a dash."""
    hits, total = sum(row["flagged"] for row in rows), sum(row["texts"] for row in rows)
    if not total:
        return "-"
    low, high = wilson(hits, total)
    return f"{hits}/{total} ({low:.{places}%} to {high:.{places}%})"


def picked(data: Row, items: str, criterion: str, choose: Callable[[Row], bool]) -> list[Row]:
    return [row for row in data["rates"] if (row["items"], row["criterion"]) == (items, criterion) and choose(row)]


def criteria(data: Row, items: str) -> list[str]:
    return list(dict.fromkeys(row["criterion"] for row in data["rates"] if row["items"] == items))


def rates(data: Row) -> list[str]:
    """False positives, and loops found, of each criterion at its default."""
    lines = ["False positives: legitimate texts flagged, with 95 % intervals (Wilson).", ""]
    lines += [
        "| on | criterion | tables, code, arithmetic, JSON | other legitimate text | of borderline | of asked for |",
        "|---|---|---|---|---|---|",
    ]
    for items in ("characters", "tokens"):
        for name in criteria(data, items):
            columns = [
                picked(data, items, name, lambda row: row["label"] == "legitimate" and row["group"] in STRICT),
                picked(data, items, name, lambda row: row["label"] == "legitimate" and row["group"] not in STRICT),
                picked(data, items, name, lambda row: row["label"] == "borderline"),
                picked(data, items, name, lambda row: row["label"] == "asked for"),
            ]
            cells = [share(columns[0]), share(columns[1]), *(share(column).split(" (")[0] for column in columns[2:])]
            lines.append(f"| {items} | {named(name)} | " + " | ".join(cells) + " |")
    lines += ["", "Loops found, by the kind of loop; the rest are false negatives.", ""]
    lines += [
        "| on | criterion | " + " | ".join(kind_title(kind) for kind in KINDS) + " |",
        "|---|---" * 1 + "|---" * 5 + "|",
    ]
    for items in ("characters", "tokens"):
        for name in criteria(data, items):
            cells = [share(picked(data, items, name, lambda row, kind=kind: row["kind"] == kind)) for kind in KINDS]
            lines.append(f"| {items} | {named(name)} | " + " | ".join(cells) + " |")
    wrong = [
        f"`{name}`: {mistakes(picked(data, 'characters', name, lambda row: row['label'] == 'legitimate'))}"
        for name in ("tandem", "drift", "counter", "edited")
    ]
    lines += ["", *textwrap.wrap("Legitimate texts flagged, on characters: " + "; ".join(wrong) + ".", 118)]
    labels = data["labels"]
    about = (
        f"{data['documents']} texts: {labels['legitimate']} legitimate, {labels['loop']} loops (made, and written by "
        f"the bundled model), {labels['borderline']} borderline outputs of the model, {labels['asked for']} in which "
        "the repetition was asked for. Each criterion at its default; tokens are those of the bundled model's "
        "tokenizer, which gives every figure and every space a token of its own. `left` are loops after which the "
        "text goes on or ends by itself. `python -m benchmarks.labelled`."
    )
    return [*lines, "", *textwrap.wrap(about, 118, break_on_hyphens=False)]


def fresh(data: Row) -> list[str]:
    """Rates on texts that no threshold was chosen on."""
    lines = ["| criterion | legitimate texts flagged | of which | loops of its kind found |", "|---|---|---|---|"]
    of_set = {"rates": data["fresh"]}
    for name in criteria(of_set, "characters"):
        wrong = picked(of_set, "characters", name, lambda row: row["label"] == "legitimate")
        right = picked(of_set, "characters", name, lambda row, name=name: row["kind"] == name)
        lines.append(f"| `{name}` | {share(wrong, 1)} | {mistakes(wrong)} | {share(right)} |")
    return lines


def mistakes(rows: list[Row]) -> str:
    """How many of which category were flagged though legitimate."""
    names = Counter(name.rsplit("-", 1)[0].replace("-", " ") for row in rows for name in row["which"])
    return ", ".join(f"{count} x {name}" for name, count in names.items()) or "none"


def kind_title(kind: str) -> str:
    return f"`{kind}` loops" if kind != "left" else "`left` again"


def named(criterion: str) -> str:
    return f"`{criterion}`" if criterion.isalnum() else criterion


def paper20(data: Row) -> list[str]:
    """What the paper's literal criterion flags."""
    by_group: dict[str, list[Row]] = {}
    for row in picked(data, "characters", "paper20", lambda row: row["label"] == "legitimate"):
        by_group.setdefault(row["group"], []).append(row)
    lines = ["| legitimate texts | flagged by `paper20` |", "|---|---|"]
    lines += [f"| {group} | {share(rows)} |" for group, rows in by_group.items()]
    lines += [
        "",
        "For example (the substring that fills most, of those that occur 20 times):",
        "",
        "| text | substring | times |",
        "|---|---|---|",
    ]
    for row in data["paper20"]:
        shown = row["substring"].replace("\n", "\\n").replace("|", "\\|")
        lines.append(
            f"| {row['id']} | <code>{shown[:60].replace('<', '&lt;').replace(' ', '&nbsp;')}</code> | {row['count']} |"
        )
    return lines


def thresholds(data: Row) -> list[str]:
    """The grid the defaults of `tandem` were chosen from."""
    strict = total(data, lambda row: row["label"] == "legitimate" and row["group"] in STRICT)
    legitimate = total(data, lambda row: row["label"] == "legitimate")
    loops = total(data, lambda row: row["kind"] == "tandem")
    what = (
        f"`tandem` at other thresholds: of {strict} tables, code, arithmetic and JSON, of all {legitimate} legitimate "
        f"texts, and of {loops} tandem loops, how many are flagged."
    )
    lines = [*textwrap.wrap(what, 118, break_on_hyphens=False), ""]
    lines += [
        "| on | copies | length | anywhere: tables ... | all | loops | at the end: tables ... | all | loops |",
        "|---" * 9 + "|",
    ]
    grid = {(row["items"], row["min_copies"], row["min_length"], row["at_end"]): row for row in data["grid"]}
    for items, copies, length, at_end in grid:
        if at_end or copies not in (5, 20):
            continue
        cells = [
            str(grid[items, copies, length, end][column])
            for end in (False, True)
            for column in ("strict", "legitimate", "tandem")
        ]
        lines.append(f"| {items} | {copies} | {length} | " + " | ".join(cells) + " |")
    about = (
        "The default is the smallest length in this grid, at 5 copies and at the end, at which no table, code, "
        "arithmetic or JSON is flagged. Without the end, no threshold on copies and length gets there and still finds "
        "the loops: arrays of zeros are as long and as regular as loops are."
    )
    return [*lines, "", *textwrap.wrap(about, 118, break_on_hyphens=False)]


def total(data: Row, choose: Callable[[Row], bool]) -> int:
    return sum(row["texts"] for row in picked(data, "characters", "tandem", choose))
