"""The tables of docs/guard.md: which texts are cut, and what the guard costs."""

from __future__ import annotations

from typing import Any

from benchmarks.detection_tables import wilson
from benchmarks.tables import machine, paragraph, results, table

Row = dict[str, Any]
KINDS = {
    "legitimate": "legitimate texts (0 is best)",
    "asked for": "repetition that somebody asked for",
    "tandem": "loops of exact copies (all is best)",
    "drift": "loops that change their unit",
    "counter": "loops that count",
    "edited": "loops in which words change",
}


def rates(data: Row) -> list[str]:
    """Return how many texts of the labelled set and of its generators are cut."""
    parts = [data["rates"][name] for name in ("labelled", "fresh")]
    rows = []
    for kind, title in KINDS.items():
        cells = []
        for part in parts:
            total = part["texts"][kind]
            for how in ("stream", "whole"):
                cut = part[how][kind]
                low, high = wilson(cut, total)
                interval = f" ({low:.1%} to {high:.1%})" if kind == "legitimate" else ""
                cells.append(f"{cut}/{total:,}{interval}")
        rows.append([title, *cells])
    note = paragraph(
        "In brackets 95 % intervals (Wilson). The thresholds were chosen on the labelled set and on other texts of its "
        "generators. Most loops of the set have less than 2,000 characters; a loop of a model goes on until it is "
        "cut. Whole answers are examined as finished ones. `python -m benchmarks.guard`."
    )
    return [*table(["texts", "set, streamed", "set, whole", "fresh, streamed", "fresh, whole"], rows), "", *note]


def cost(data: Row) -> list[str]:
    """Return what the guard adds to a stream, and its memory over many streams."""
    own, both, soak = data["examination"], data["proxies"], results("soak_guard.json")
    rows = [
        [name, *(f"{one:.2f} ms" for one in (*both[key]["first_ms"], *both[key]["event_ms"]))]
        for key, name in (("plain", "plain proxy (Starlette, httpx)"), ("guard", "guard"))
    ]
    note = paragraph(
        f"{both['rounds']} streams of {both['events']} events through each, in turns, from a source on the same machine. "
        f"The guard's own work for an event takes {own['us']} us, and {own['p99']} us at the 99th percentile, on one core. "
        f"{machine(data)}. `python -m benchmarks.guard`."
    )
    memory = paragraph(
        f"In {soak['streams']:,} streams, 50 at a time, the guard's memory went from {soak['memory'][0]['mib']:.0f} to "
        f"{soak['memory'][-1]['mib']:.0f} MiB. It cut {soak['loops_cut']:,.0f} loops. `make soak-guard`."
    )
    heads = ["", "first byte, median", "99th percentile", "an event, median", "99th percentile"]
    return [*table(heads, rows), "", *note, "", *memory]
