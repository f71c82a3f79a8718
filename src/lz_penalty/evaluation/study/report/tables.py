"""Write the tables: CSV for programs and Markdown for readers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from lz_penalty.evaluation.study.results import Cost, write_table
from lz_penalty.evaluation.study.statistics import BASELINE, MEANS, Measured, Summary

__all__ = ["has_accuracy", "reader_table", "write_summary"]

SIGNIFICANT = 0.05
PARTS = ("mean", "sd", "low", "high", "change", "p")


def has_accuracy(found: Iterable[Summary]) -> bool:
    """Return whether any of the cells has right and wrong answers."""
    return any(not math.isnan(item.accuracy.mean) for item in found)


def write_summary(path: Path, found: Sequence[Summary], costs: Sequence[Cost]) -> None:
    """Write one line per cell as CSV."""
    bits = {(cost.model, cost.penalty): cost.bits for cost in costs}
    names = [f"{measure}_{part}" for measure in ("accuracy", "repeats") for part in PARTS]
    head = ["model", "task", "penalty", "temperature", "samples", "runs", *names, *MEANS, "human_text_cost_bits"]
    lines = []
    for item in found:
        line = [item.model, item.task, item.penalty, f"{item.temperature:g}", item.samples, item.runs]
        line += [getattr(measure, part) for measure in (item.accuracy, item.repeats) for part in PARTS]
        line += [getattr(item, name) for name in MEANS]
        lines.append([*line, bits.get((item.model, item.penalty), math.nan)])
    write_table(path, head, lines, digits=5)


def reader_table(found: Sequence[Summary], costs: Sequence[Cost]) -> str:
    """Return the cells of one model, task and temperature as Markdown, with significant changes in bold."""
    bits = {(cost.model, cost.penalty): cost for cost in costs}
    scored, judged = has_accuracy(found), any(not math.isnan(item.judged) for item in found)
    head = ["penalty", *(["accuracy (95 %)", "against none"] if scored else []), "degenerate (95 %)", "against none"]
    head += ["ends in a loop", *(["judged a loop"] if judged else []), "wasted tokens", "tokens", "cut off"]
    head += ["human-text cost"] if bits else []
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" + "---:|" * (len(head) - 1)]
    for item in found:
        cells = [f"`{item.penalty}`"]
        for measure in ([item.accuracy] if scored else []) + [item.repeats]:
            cells += [_share(measure), "" if item.penalty == BASELINE else _change(measure)]
        cells += [_percent(item.loop), *([_percent(item.judged)] if judged else [])]
        cells += [f"{item.wasted:.0f}", f"{item.tokens:.0f}", _percent(item.capped)]
        if bits:
            cost = bits.get((item.model, item.penalty))
            cells.append("" if cost is None else f"{cost.bits:+.3f} ({cost.low:+.3f} to {cost.high:+.3f})")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _percent(share: float) -> str:
    return "" if math.isnan(share) else f"{share:.1%}"


def _share(measure: Measured) -> str:
    if math.isnan(measure.mean):
        return ""
    return f"{measure.mean:.1%} ({measure.low:.0%} to {measure.high:.0%})"


def _change(measure: Measured) -> str:
    if math.isnan(measure.change):
        return ""
    text = f"{100 * measure.change:+.1f} (p {_p(measure.p)})"
    return f"**{text}**" if measure.p < SIGNIFICANT else text


def _p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"= {p:.3f}"
