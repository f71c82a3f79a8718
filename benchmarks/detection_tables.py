"""The tables of detection: rates on real outputs and on the labelled set, speed, and the memory of `lz-penalty detect`."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from benchmarks.tables import machine, paragraph, results, table
from lz_penalty.detection._verdict import CRITERIA

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


def in_short(data: Row) -> list[str]:
    """Return the false positives of four criteria and the loops that each is made for, in the set and in fresh texts."""
    rows = []
    for name in ("tandem", "drift", "counter", "edited"):
        cells = []
        for found in (data, {"rates": data["fresh"]}):
            cells.append(_share(_picked(found, "characters", name, _is_legitimate), 1))
            cells.append(_share(_picked(found, "characters", name, lambda row, name=name: row["kind"] == name)))
        rows.append([f"`{name}`", *cells])
    columns = ["criterion", "set: legitimate flagged", "set: its loops found"]
    columns += ["fresh: legitimate flagged", "fresh: its loops found"]
    about = "Characters; in brackets 95 % intervals (Wilson). `python -m benchmarks.labelled`."
    return [*table(columns, rows), "", *paragraph(about)]


def stopping(data: Row) -> list[str]:
    """Return how often thresholds for streams of tokens stop legitimate texts, and how many loops they stop."""
    names = {
        "5 copies, 60 tokens, anywhere": "5 copies, 60 tokens: `RepetitionDetector`",
        "20 copies, anywhere": "20 copies",
        "stopping: 20 copies, 480 tokens": "20 copies, 480 tokens: `stop_on_repetition`, `RepetitionStoppingCriteria`",
    }
    rows = []
    for name, title in names.items():
        strict = _picked(data, "tokens", name, lambda row: _is_legitimate(row) and row["group"] in STRICT)
        others = _picked(data, "tokens", name, lambda row: _is_legitimate(row) and row["group"] not in STRICT)
        loops = _picked(data, "tokens", name, lambda row: row["kind"] == "tandem")
        rows.append([title, _share(strict), _share(others), _share(loops)])
    columns = [
        "thresholds",
        "tables, code, arithmetic, JSON stopped",
        "other legitimate texts stopped",
        "loops stopped",
    ]
    about = (
        "In brackets 95 % intervals (Wilson). The tokens are those of the bundled model, which has one token for each digit "
        "and each space. Many loops of the set end before they have 480 tokens; a loop of a model goes on until something ends "
        "it. `python -m benchmarks.labelled`."
    )
    return [*table(columns, rows), "", *paragraph(about)]


def rates(data: Row) -> list[str]:
    """Return false positives and loops found, for each criterion with its defaults."""
    false_positives, found = [], []
    for items in ("characters", "tokens"):
        for name in _criteria(data, items):
            columns = [
                _picked(data, items, name, lambda row: _is_legitimate(row) and row["group"] in STRICT),
                _picked(data, items, name, lambda row: _is_legitimate(row) and row["group"] not in STRICT),
                _picked(data, items, name, lambda row: row["label"] == "borderline"),
                _picked(data, items, name, lambda row: row["label"] == "asked for"),
            ]
            label = f"`{name}`" if name.isalnum() else name
            shares = [_share(column) for column in columns]
            false_positives.append([items, label, *shares[:2], *(share.split(" (")[0] for share in shares[2:])])
            of_kinds = [_picked(data, items, name, lambda row, kind=kind: row["kind"] == kind) for kind in KINDS]
            found.append([items, label, *map(_share, of_kinds)])
    titles = [f"`{kind}`" for kind in KINDS]
    wrong = [
        f"`{name}`: {_mistakes(_picked(data, 'characters', name, _is_legitimate))}"
        for name in ("tandem", "drift", "counter", "edited")
    ]
    labels = data["labels"]
    about = (
        f"The set has {data['documents']} texts: {labels['legitimate']} legitimate ones, {labels['loop']} loops, "
        f"{labels['borderline']} borderline outputs, and {labels['asked for']} texts in which somebody asked for the "
        "repetition. Each criterion has its default thresholds. The tokens are those of the bundled model, which has one token "
        "for each digit and each space. `left` is a loop after which the text goes on. `python -m benchmarks.labelled`."
    )
    return [
        "How many texts without a loop are flagged; 0 is best. In brackets 95 % intervals (Wilson).",
        "",
        *table(
            ["items", "criterion", "tables, code, arithmetic, JSON", "other legitimate", "borderline", "asked for"],
            false_positives,
        ),
        "",
        *paragraph("Legitimate texts flagged, on characters: " + "; ".join(wrong) + "."),
        "",
        "How many loops are found, by kind of loop; all is best.",
        "",
        *table(["items", "criterion", *titles], found),
        "",
        *paragraph(about),
    ]


def paper20(data: Row) -> list[str]:
    """Return examples of substrings for which the paper's literal criterion flags legitimate texts."""
    examples = []
    for row in data["paper20"]:
        shown = row["substring"].replace("\n", "\\n").replace("|", "\\|")[:60]
        examples.append([row["id"], f"`{shown}`", str(row["count"])])
    return table(["legitimate text", "substring", "times"], examples)


def thresholds(data: Row) -> list[str]:
    """Return the grid that the defaults of `tandem` were chosen from."""
    strict = _total(data, lambda row: _is_legitimate(row) and row["group"] in STRICT)
    legitimate = _total(data, _is_legitimate)
    loops = _total(data, lambda row: row["kind"] == "tandem")
    what = (
        f"How many texts `tandem` flags at other thresholds: of {strict} tables, code, arithmetic and JSON (0 is best), of all "
        f"{legitimate} legitimate texts (0 is best), and of {loops} tandem loops (all is best)."
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
        "The default has 5 copies at the end of the text, and the smallest length in this grid at which no table, code, "
        "arithmetic or JSON is flagged. Anywhere in the text, every row of the grid flags some of them: arrays of zeros are "
        "as long and as regular as loops."
    )
    counts = ["anywhere: tables ...", "all", "loops", "at the end: tables ...", "all", "loops"]
    return [*paragraph(what), "", *table(["items", "copies", "length", *counts], rows), "", *paragraph(about)]


def _is_legitimate(row: Row) -> bool:
    return row["label"] == "legitimate"


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
    return f"{hits}/{total:,} ({low:.{places}%} to {high:.{places}%})"


def _mistakes(rows: list[Row]) -> str:
    """Return how many legitimate texts of which category were flagged."""
    names = Counter(name.rsplit("-", 1)[0].replace("-", " ") for row in rows for name in row["which"])
    return ", ".join(f"{count} x {name}" for name, count in names.items()) or "none"


# ---------------------------------------------------------------- speed and memory


def watching(data: Row) -> list[str]:
    """Return the speed of the detectors that read a stream, from results/detection.json."""
    online = [
        [row["stream"], f"{row['us_per_push']:.1f} us", f"{row['last_over_first']:.2f}"]
        for row in data["online"]
        if row["max_period"] == 1024
    ]
    other = {
        "`StructureDetector`, a token of 4 characters": f"{data['structure']['us_per_push']:.1f} us",
        "`RepetitionDetector`, 4 tokens removed and 5 pushed": f"{data['rewinding']:.1f} us",
        "`RepetitionStoppingCriteria`, a row in a step": f"{data['stopping']['ordinary']:.0f} us",
        "`RepetitionStoppingCriteria`, a row that loops": f"{data['stopping']['end recurs']:.0f} us",
    }
    return [
        *table(["stream of tokens", "one token", "last tenth / first tenth"], online),
        "",
        *table(["other", "time"], [list(row) for row in other.items()]),
        "",
        *paragraph(f"One thread; {machine(data)}. `python -m benchmarks.detection`."),
    ]


def searching(data: Row) -> list[str]:
    """Return the speed of the search in stored texts, from results/detection.json."""
    settings = ("5 copies, 60 items", "20 copies", "2 copies")
    rate = {(row["text"], row["setting"]): f"{row['mb_per_s']:.0f} MB/s" for row in data["offline"]}
    offline = [[text, *(rate[text, one] for one in settings)] for text in dict.fromkeys(text for text, _ in rate)]
    documents, plain = data["documents"], data["without_numba"]
    growth = max(row["growth_over_linear"] for row in data["offline"])
    other = {
        "default criteria, finished texts": f"{documents['default, finished']:,.0f} MB/s",
        "default criteria, texts that a limit cut off": f"{documents['default, cut off']:.0f} MB/s",
        "`find_repetition`": f"{documents['tandem']:.0f} MB/s",
        "`find_repetition` without Numba, a text of 100 kB": f"{plain['prose']:.1f} MB/s, at worst {min(plain.values()):.1f}",
        "`paper20`": f"{documents['paper20']:.0f} MB/s",
        "`repeated_substrings`": f"{documents['repeated_substrings']:.1f} MB/s",
        "`repetition_report`": f"{documents['repetition_report']:.1f} MB/s",
    }
    about = (
        f"A text that is 8 times as long takes at most {8 * growth:.0f} times as long. One thread; {machine(data)}. "
        "`python -m benchmarks.detection`."
    )
    return [
        *table(["text of 1 MB", *settings], offline),
        "",
        *table(["function", "speed"], [list(row) for row in other.items()]),
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


def outputs(data: Row) -> list[str]:
    """Return the errors of each criterion on outputs of real models."""
    rows = {(row["part"], row["label"], row["finish"]): row for row in data["outputs"]}
    parts = ("to choose", "final")
    lines = []
    for name in ("default", *CRITERIA):
        loops = [_flagged_share([rows[part, "loop", "length"]], name) for part in parts]
        healthy = [
            _flagged_share([rows[part, "legitimate", finish] for part in parts], name) for finish in ("stop", "length")
        ]
        lines.append(["**default**" if name == "default" else f"`{name}`", *loops, *healthy])
    files = data["files"]
    about = (
        "In brackets 95 % intervals (Wilson). SmolLM2's outputs were used to choose thresholds, Qwen's were not. The default "
        "was also run on files of Python's library and of installed packages. As finished texts, it flags "
        f"{files['whole']['flagged']} of {files['whole']['texts']:,} files. As texts that a limit cut off, it flags "
        f"{files['cut']['flagged']} of {files['cut']['texts']:,} pieces of 1,500 to 4,000 characters: generated headers, "
        f"tables of data and lists of tests. {machine(data)}. `python -m benchmarks.capped`."
    )
    titles = ["criterion", "loops found, SmolLM2-135M", "loops found, Qwen2.5-Coder-0.5B"]
    titles += ["finished, no loop, flagged", "cut off, no loop, flagged"]
    return [*table(titles, lines), "", *paragraph(about)]


def by_group(data: Row) -> list[str]:
    """Return how many legitimate texts of each group are flagged by the defaults and by the paper's criterion."""
    labelled = results("labelled.json")
    lines = []
    for row in data["labelled"]:
        literal = _picked(
            labelled,
            "characters",
            "paper20",
            lambda one, group=row["group"]: _is_legitimate(one) and one["group"] == group,
        )
        counts = [row["whole"]["default"], row["cut"]["default"], sum(one["flagged"] for one in literal)]
        lines.append([row["group"], str(row["texts"]), *map(str, counts)])
    return table(["legitimate texts", "number", "default", "default, cut at two thirds", "`paper20`"], lines)


def capped_groups(data: Row) -> list[str]:
    """Return how many legitimate texts of each group the criteria for capped texts flag."""
    names = ("block", "structure", "gram30")
    lines = [
        [row["group"], str(row["texts"]), *(str(row[how][name]) for name in names for how in ("whole", "cut"))]
        for row in data["labelled"]
    ]
    titles = [f"`{name}`{how}" for name in names for how in ("", ", cut")]
    return table(["legitimate texts", "number", *titles], lines)


def _flagged_share(rows: list[Row], name: str) -> str:
    if not all(name in row["flagged"] for row in rows):
        sys.exit(f"the criterion {name!r} is not in results/capped.json: run python -m benchmarks.capped")
    return _share([{"texts": row["texts"], "flagged": row["flagged"][name]} for row in rows])
