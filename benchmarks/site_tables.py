"""Tables of README and docs/limitations.md that show a part of what other pages show in full."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any


def cost_in_short(data: dict[str, Any], microseconds: Callable[..., str], machine: str) -> list[str]:
    """One step on a GPU, at one batch size."""
    rows = [
        ("**LZ penalty, paper**", "ours (hot)", {}),
        ("**LZ penalty, guarded**", "ours (hot)", {"preset": "guarded"}),
        ("one dense `logits.add_(bias)`", "add_ (hot)", {"rows": "random"}),
        ("transformers' repetition penalty", "repetition 1.2", {}),
        ("DRY, as a processor", "DRY", {}),
        ("the paper's method, dense", "dense paper", {}),
    ]
    lines = ["| one step on a GPU, batch 64, vocabulary 151,936 | |", "|---|---|"]
    lines += [f"| {label} | {microseconds(data, contender, **cell)} us |" for label, contender, cell in rows]
    about = f"Device time, every second row in a loop; DRY waits for the device and is timed as it runs. {machine}."
    return [*lines, "", *textwrap.wrap(about, 118)]


def asked_for(data: dict[str, Any]) -> list[str]:
    """What penalties do to repetition that was asked for, and to indented code."""
    kinds = {"letters": "a letter 50 to 150 times", "edit": "code with a name changed", "quote": "a quotation"}
    lines = ["| leaves the copy | " + " | ".join(kinds.values()) + " |", "|---" * (len(kinds) + 1) + "|"]
    for row in data["results"]:
        unpenalised = row["penalty"] == "none"
        found = {one["kind"]: one["stays" if unpenalised else "leaves"] for one in row["copies"]}
        label = "(stays on it without a penalty)" if unpenalised else row["penalty"]
        lines.append(f"| {label} | " + " | ".join(f"{found[kind]:.1%}" for kind in kinds) + " |")
    return lines


def weak(data: dict[str, Any]) -> list[str]:
    """How many outputs of a weak model are degenerate, under bounded penalties and under escalation."""
    lines = ["| penalty | degenerate outputs | outputs with a loop |", "|---|---|---|"]
    shown = ("none", "repetition:1.2", "paper", "guarded", "failsafe")
    rows = {row["penalty"]: row for row in data["results"]}
    return lines + [f"| {name} | {rows[name]['degenerate']:.1%} | {rows[name]['loops']:.1%} |" for name in shown]
