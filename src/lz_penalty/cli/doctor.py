"""`lz-penalty doctor`: what runs here, and why not."""

from __future__ import annotations

import json

import typer
from rich.console import Console
from rich.table import Table


def doctor(as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table.")) -> None:
    """Which backends are usable here, and what the others need."""
    from lz_penalty import available_backends

    reasons = available_backends()
    if as_json:
        print(json.dumps({name: reason or "usable" for name, reason in reasons.items()}, indent=2))
        return
    table = Table("backend", "usable here", "what it needs", box=None)
    for name, reason in reasons.items():
        table.add_row(name, "[red]no[/]" if reason else "[green]yes[/]", reason or "")
    Console().print(table)
