"""The tables of docs/guard.md: false cuts, and what the guard costs."""

from __future__ import annotations

from typing import Any

from benchmarks.detection_tables import wilson
from benchmarks.tables import machine, paragraph, table

Row = dict[str, Any]


def rates(data: Row) -> list[str]:
    """How many texts of the labelled set and of its generators are cut."""
    rows = []
    for name, label in (("labelled", "the labelled set"), ("fresh", "fresh texts of its generators")):
        found = data["rates"][name]
        total, loops = found["texts"]["legitimate"], found["texts"]["tandem"]
        low, high = wilson(found["stream"]["legitimate"], total)
        whole = f"{found['whole']['legitimate']}/{total}"
        cut = f"{found['stream']['legitimate']}/{total} ({low:.1%} to {high:.1%})"
        rows.append([label, cut, whole, f"{found['stream']['tandem']}/{loops}", f"{found['whole']['tandem']}/{loops}"])
    heads = ["texts", "legitimate, cut as a stream", "as a whole answer", "loops cut as a stream", "as a whole answer"]
    note = paragraph(
        "False cuts, with 95 % intervals (Wilson). The thresholds were chosen on the labelled set and on other texts of its "
        "generators. The loops of the set end after a median of about 2,000 characters; a loop of a model goes on until it is "
        "cut. `python -m benchmarks.guard`."
    )
    return [*table(heads, rows), "", *note]


def cost(data: Row) -> list[str]:
    """What the guard adds to a stream."""
    own, both = data["examination"], data["proxies"]
    rows = [
        [name, *(f"{one:.2f} ms" for one in (*both[key]["first_ms"], *both[key]["event_ms"]))]
        for key, name in (("plain", "plain proxy (Starlette, httpx)"), ("guard", "guard"))
    ]
    note = paragraph(
        f"{both['rounds']} streams of {both['events']} events through each, in turns, from a source on the same machine. "
        f"Splitting, parsing and watching an event take {own['us']} us, {own['p99']} us "
        f"at the 99th percentile, on one core. {machine(data)}. `python -m benchmarks.guard`."
    )
    return [
        *table(["", "first byte, median", "99th percentile", "an event, median", "99th percentile"], rows),
        "",
        *note,
    ]
