"""What `lz-penalty detect` prints at the end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lz_penalty.cli.output import clean, number_table
from lz_penalty.errors import show as shown

if TYPE_CHECKING:
    from lz_penalty.detection.judge import Judge
    from lz_penalty.detection.scan import Document, Summary

__all__ = ["show"]

UNIT = 60  # characters of a unit, at most
NARROW = 52  # columns; a narrower terminal does not show the share of the wasted characters


def show(summary: Summary, judge: Judge | None, as_json: bool) -> None:
    """Print the summary, as JSON or as a table and a list of the worst documents."""
    usage = asdict(judge.usage()) if judge else None
    if as_json:
        print(json.dumps(summary.to_dict() | ({"usage": usage} if usage else {}), indent=2))
        return
    console = Console(highlight=False)
    console.print(
        f"documents: {summary.documents:,}  characters: {summary.characters:,}  problems: {summary.problems:,}"
    )
    console.print(_criteria(summary, judge is not None, console.width))
    worst = summary.worst()
    if worst:
        console.print("The worst:")
    for document in worst:
        # The place is never cut: a line that is too long goes on in the next line of the terminal.
        console.print(clean(_place(document)), style="bold", soft_wrap=True)
        for line in _verdicts(document, console.width):
            console.print(line)
    if summary.missed:
        names = ", ".join(f"{name} ({count:,})" for name, count in summary.missed.items())
        console.print(
            f"{summary.sampled:,} documents without a verdict were examined again. Other criteria would flag some of them: "
            f"{names}. Add them with --criterion, or give --capped if a limit on tokens cut the texts off."
        )
    if usage:
        spent = ", ".join(f"{value:,} {name.replace('_', ' ')}" for name, value in usage.items() if value)
        console.print(f"judge: {spent}; {summary.judged['unknown']:,} of {summary.judged['asked']:,} without an answer")


def _criteria(summary: Summary, judged: bool, width: int) -> Table:
    numbers = ["documents", "share", *(["characters\nwasted", "of all"] if width >= NARROW else ["wasted"])]
    table = number_table("criterion", *numbers)
    for name, tally in summary.by_criterion.items():
        wasted: list[str] = []
        if tally.wasted is not None:
            wasted = [f"{tally.wasted:,}", f"{tally.wasted / max(1, summary.characters):.2%}"]
        cells = [f"{tally.documents:,}", f"{summary.share(tally.documents):.2%}", *wasted]
        table.add_row(name, *cells[: len(numbers)])
    if judged:
        for name, count in (("judge", summary.judged["loop"]), ("both (dual)", summary.dual["loop"])):
            table.add_row(name, f"{count:,}", f"{summary.share(count):.2%}")
    return table


def _place(document: Document) -> str:
    return document.source if document.line is None else f"{document.source}:{document.line}"


def _verdicts(document: Document, width: int) -> Iterator[Text]:
    """Yield two lines for each verdict: what was found where, and the unit that is repeated."""
    for verdict in document.verdicts:
        wasted = "" if verdict.wasted is None else f", {verdict.wasted:,} characters wasted"
        yield Text(f"  {verdict.criterion}: {verdict.copies:,.1f} copies from character {verdict.start:,} on{wasted}")
        unit = clean(shown(verdict.unit[:UNIT], max(16, min(UNIT, width) - 6)))
        yield Text("    ").append(unit)
    if document.judgement is not None:
        answer = {True: "a loop", False: "no loop", None: "no answer"}[document.judgement.loop]
        yield Text(f"  judge: {answer}")
