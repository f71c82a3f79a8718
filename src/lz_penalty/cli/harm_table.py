"""The table of harm, for `cost` and `compare`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from lz_penalty.cli.output import clean, number_table

__all__ = ["harm_table"]


def harm_table(harms: Sequence[dict[str, Any]]) -> Table:
    """Return a table with a row for each harm, as `evaluation.harm.Harm.to_dict` returns it.

    A column is a kind of text. Each cell shows the bits, and below them the share.
    """
    kinds = [clean(one["kind"]) for one in harms[0]["texts"]]
    columns: list[str | Text] = [*kinds, *(["copies", "spoilt\ncopies"] if harms[0]["copies"] else [])]
    title = "harm: bits per token more, and share of right tokens lost"
    table = number_table("penalty", *columns, title=title)
    for harm in harms:
        cells = [_cell(one["cost"]["mean"], one["lost"]) for one in harm["texts"]]
        for copies in harm["copies"][-1:]:
            lost = copies["leaves"] / copies["stays"] if copies["stays"] else 0.0
            cells += [_cell(copies["cost"]["mean"], lost), f"{copies['spoilt']:.0%}"]
        table.add_row(harm["penalty"], *cells)
    return table


def _cell(bits: float | None, lost: float) -> str:
    shown = "infinite" if bits is None else f"{bits:+.3f}" if bits < 1_000 else "over 1,000"
    return f"{shown}\n{lost:.1%}"
