"""The tables of detection in docs/: rates on the labelled set, speed, and the memory of `lz-penalty detect`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

from benchmarks.tables import machine, paragraph, table

STRICT = ("tables", "code", "arithmetic", "JSON")  # groups in which `tandem` must flag nothing
KINDS = ("tandem", "drift", "counter", "edited", "left")
Row = dict[str, Any]


def wilson(hits: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """Return the 95 % interval of a share.

    >>> [round(end, 3) for end in wilson(0, 100)]
    [0.0, 0.037]
    """
    share, square = hits / total, z * z / total
    middle = (share + square / 2) / (1 + square)
    half = z / (1 + square) * math.sqrt(share * (1 - share) / total + square / (4 * total))
    return max(0.0, middle - half), min(1.0, middle + half)


# ---------------------------------------------------------------- results/labelled.json


def rates(data: Row) -> list[str]:
    """False positives and loops found, for each criterion with its defaults."""
    false_positives, found = [], []
    for items in ("characters", "tokens"):
        for name in _criteria(data, items):
            columns = [
                _picked(data, items, name, lambda row: row["label"] == "legitimate" and row["group"] in STRICT),
                _picked(data, items, name, lambda row: row["label"] == "legitimate" and row["group"] not in STRICT),
                _picked(data, items, name, lambda row: row["label"] == "borderline"),
                _picked(data, items, name, lambda row: row["label"] == "asked for"),
            ]
            label = f"`{name}`" if name.isalnum() else name
            shares = [_share(column) for column in columns]
            false_positives.append([items, label, *shares[:2], *(share.split(" (")[0] for share in shares[2:])])
            of_kinds = [_picked(data, items, name, lambda row, kind=kind: row["kind"] == kind) for kind in KINDS]
            found.append([items, label, *map(_share, of_kinds)])
    legitimate = ["tables, code, arithmetic, JSON", "other legitimate text"]
    titles = [f"`{kind}` loops" if kind != "left" else "`left` again" for kind in KINDS]
    wrong = [
        f"`{name}`: {_mistakes(_picked(data, 'characters', name, lambda row: row['label'] == 'legitimate'))}"
        for name in ("tandem", "drift", "counter", "edited")
    ]
    labels = data["labels"]
    about = (
        f"{data['documents']} texts: {labels['legitimate']} legitimate, {labels['loop']} loops (made, and written by "
        f"the bundled model), {labels['borderline']} borderline outputs of the model, {labels['asked for']} in which "
        "the repetition was asked for. Each criterion at its default; tokens are those of the bundled model's "
        "tokenizer, which gives every figure and every space a token of its own. `left` are loops after which the "
        "text goes on or ends by itself. `python -m benchmarks.labelled`."
    )
    return [
        "False positives: legitimate texts flagged, with 95 % intervals (Wilson).",
        "",
        *table(["on", "criterion", *legitimate, "of borderline", "of asked for"], false_positives),
        "",
        "Loops found, by the kind of loop; the rest are false negatives.",
        "",
        *table(["on", "criterion", *titles], found),
        "",
        *paragraph("Legitimate texts flagged, on characters: " + "; ".join(wrong) + "."),
        "",
        *paragraph(about),
    ]


def fresh(data: Row) -> list[str]:
    """Rates on texts that no threshold was chosen on."""
    rows = []
    of_set = {"rates": data["fresh"]}
    for name in _criteria(of_set, "characters"):
        wrong = _picked(of_set, "characters", name, lambda row: row["label"] == "legitimate")
        right = _picked(of_set, "characters", name, lambda row, name=name: row["kind"] == name)
        rows.append([f"`{name}`", _share(wrong, 1), _mistakes(wrong), _share(right)])
    return table(["criterion", "legitimate texts flagged", "of which", "loops of its kind found"], rows)


def paper20(data: Row) -> list[str]:
    """Legitimate texts that the paper's literal criterion flags, and some of the substrings."""
    by_group: dict[str, list[Row]] = {}
    for row in _picked(data, "characters", "paper20", lambda row: row["label"] == "legitimate"):
        by_group.setdefault(row["group"], []).append(row)
    examples = []
    for row in data["paper20"]:
        shown = row["substring"].replace("\n", "\\n").replace("|", "\\|")[:60]
        code = shown.replace("<", "&lt;").replace(" ", "&nbsp;")
        examples.append([row["id"], f"<code>{code}</code>", str(row["count"])])
    return [
        *table(
            ["legitimate texts", "flagged by `paper20`"], [[group, _share(rows)] for group, rows in by_group.items()]
        ),
        "",
        "For example (the substring that fills most, of those that occur 20 times):",
        "",
        *table(["text", "substring", "times"], examples),
    ]


def thresholds(data: Row) -> list[str]:
    """The grid that the defaults of `tandem` were chosen from."""
    strict = _total(data, lambda row: row["label"] == "legitimate" and row["group"] in STRICT)
    legitimate = _total(data, lambda row: row["label"] == "legitimate")
    loops = _total(data, lambda row: row["kind"] == "tandem")
    what = (
        f"`tandem` at other thresholds: of {strict} tables, code, arithmetic and JSON, of all {legitimate} legitimate "
        f"texts, and of {loops} tandem loops, how many are flagged."
    )
    grid = {(row["items"], row["min_copies"], row["min_length"], row["at_end"]): row for row in data["grid"]}
    rows = []
    for items, copies, length, at_end in grid:
        if at_end or copies not in (5, 20):
            continue
        flagged = [
            str(grid[items, copies, length, end][column])
            for end in (False, True)
            for column in ("strict", "legitimate", "tandem")
        ]
        rows.append([items, str(copies), str(length), *flagged])
    about = (
        "The default is the smallest length in this grid, at 5 copies and at the end, at which no table, code, "
        "arithmetic or JSON is flagged. Without the end, no threshold on copies and length gets there and still finds "
        "the loops: arrays of zeros are as long and as regular as loops are."
    )
    counts = ["anywhere: tables ...", "all", "loops", "at the end: tables ...", "all", "loops"]
    return [*paragraph(what), "", *table(["on", "copies", "length", *counts], rows), "", *paragraph(about)]


def _criteria(data: Row, items: str) -> list[str]:
    return list(dict.fromkeys(row["criterion"] for row in data["rates"] if row["items"] == items))


def _picked(data: Row, items: str, criterion: str, choose: Callable[[Row], bool]) -> list[Row]:
    return [row for row in data["rates"] if (row["items"], row["criterion"]) == (items, criterion) and choose(row)]


def _total(data: Row, choose: Callable[[Row], bool]) -> int:
    return sum(row["texts"] for row in _picked(data, "characters", "tandem", choose))


def _share(rows: list[Row], places: int = 0) -> str:
    """Return the share of flagged texts with its interval in per cent, or a dash if there are no texts."""
    hits, total = sum(row["flagged"] for row in rows), sum(row["texts"] for row in rows)
    if not total:
        return "-"
    low, high = wilson(hits, total)
    return f"{hits}/{total} ({low:.{places}%} to {high:.{places}%})"


def _mistakes(rows: list[Row]) -> str:
    """Return how many legitimate texts of which category were flagged."""
    names = Counter(name.rsplit("-", 1)[0].replace("-", " ") for row in rows for name in row["which"])
    return ", ".join(f"{count} x {name}" for name, count in names.items()) or "none"


# ---------------------------------------------------------------- speed and memory


def speed(data: Row) -> list[str]:
    """Online and offline detection, from results/detection.json."""
    online = [
        [row["stream"], f"{row['us_per_push']:.1f} us", f"{row['last_over_first']:.2f}"]
        for row in data["online"]
        if row["max_period"] == 1024
    ]
    settings = ("5 copies, 60 items", "20 copies", "2 copies")
    rate = {(row["text"], row["setting"]): f"{row['mb_per_s']:.0f} MB/s" for row in data["offline"]}
    offline = [[text, *(rate[text, one] for one in settings)] for text in dict.fromkeys(text for text, _ in rate)]
    documents, plain, stopping = data["documents"], data["without_numba"], data["stopping"]
    growth = max(row["growth_over_linear"] for row in data["offline"])
    about = (
        f"Eight times the length takes at most {growth:.1f} x eight times as long. Prose in texts of 4,000 characters: "
        f"`find_repetition` {documents['tandem']:.0f} MB/s, `paper20` {documents['paper20']:.0f}, `repeated_substrings` "
        f"{documents['repeated_substrings']:.0f}, `repetition_report` {documents['repetition_report']:.1f}, the default of "
        f"`detect` {documents['default, finished']:.0f} for finished texts and {documents['default, cut off']:.0f} for texts "
        f"that were cut off. `StructureDetector`: {data['structure']['us_per_push']:.1f} us for a token of 4 characters. "
        f"Without Numba "
        f"`find_repetition` reads {plain['prose']:.1f} MB/s of prose, {min(plain.values()):.1f} at worst. Taking four drafted "
        f"tokens back and pushing five: {data['rewinding']:.1f} us. The stopping criterion: {stopping['ordinary']:.0f} us a "
        f"row and step, {stopping['end recurs']:.0f} in a loop. One thread; {machine(data)}. `python -m benchmarks.detection`."
    )
    return [
        *table(["a stream of 1,000,000 tokens", "one push", "last tenth / first tenth"], online),
        "",
        *table(["a text of 1 MB, searched offline", *settings], offline),
        "",
        *paragraph(about),
    ]


def memory(data: Row) -> list[str]:
    """Peak memory and speed of the command, from results/detect_memory.json."""
    rows = [
        [
            ", ".join(row["criteria"]),
            f"{row['bytes'] / 1e6:,.0f} MB",
            f"{row['peak_megabytes']:.0f} MB",
            f"{row['megabytes_per_second']:.1f} MB/s",
        ]
        for row in data["rows"]
    ]
    about = (
        "One process, documents of 0.2 kB to 8 MB of which each tenth ends in a loop, start of the process included. "
        f"{machine(data)}. `python -m benchmarks.detect_memory`."
    )
    return [*table(["criteria", "JSON lines", "peak memory", "speed"], rows), "", *paragraph(about)]


# ---------------------------------------------------------------- results/capped.json


def capped(data: Row) -> list[str]:
    """Errors of the defaults on outputs of real models, and on files."""
    parts = {"to choose": "SmolLM2-135M, to choose with", "final": "Qwen2.5-Coder-0.5B, final"}
    rows = {(row["part"], row["label"], row["finish"]): row for row in data["outputs"]}
    names = ("default", "tandem", "block", "structure", "counter", "drift", "edited", "gram30", "paper20")
    found = []
    for part, title in parts.items():
        loops = rows[part, "loop", "length"]
        healthy = [rows[part, "legitimate", finish] for finish in ("stop", "length")]
        for name in names:
            flagged = [_share([row | {"flagged": row["flagged"][name]}]) for row in (loops, healthy[0])]
            short = f"{healthy[1]['flagged'][name]}/{healthy[1]['texts']}"
            found.append([title, name if name == "default" else f"`{name}`", *flagged, short])
    files, groups = data["files"], data["labelled"]
    newer = ("block", "structure", "gram30")
    of_groups = [
        [
            row["group"],
            str(row["texts"]),
            *(str(row[how][name]) for how in ("whole", "cut") for name in ("default", *newer)),
        ]
        for row in groups
    ]
    about = (
        f"Files of Python's library and of installed packages: of {files['whole']['texts']:,} whole files the default for "
        f"finished texts flags {files['whole']['flagged']}; of {files['cut']['texts']:,} pieces of 1,500 to 4,000 characters, "
        f"taken as texts that were cut off, the default for those flags {files['cut']['flagged']}, which are generated "
        f"headers, tables of data and lists of tests. `python -m benchmarks.capped`. "
    )
    titles = ["outputs of", "criterion", "loops found", "finished texts flagged", "cut off, no loop, flagged"]
    names = ["default", *(f"`{name}`" for name in newer)]
    return [
        *table(titles, found),
        "",
        "Legitimate texts of the labelled set, which were made to repeat: flagged as finished texts, and cut at two thirds.",
        "",
        *table(
            ["group", "texts", *(f"whole: {name}" for name in names), *(f"cut: {name}" for name in names)], of_groups
        ),
        "",
        *paragraph(about + machine(data) + "."),
    ]
