"""`lz-penalty doctor`: what runs here, and why not."""

from __future__ import annotations

import json
from importlib import metadata

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

ENGINES = {"transformers": "5.20"}  # each with the oldest version that is tested


def doctor(as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table.")) -> None:
    """Which backends and engines are usable here, and what the others need."""
    from lz_penalty import available_backends

    reasons = {f"backend {name}": reason for name, reason in available_backends().items()}
    reasons |= {f"engine {name}": _engine_problem(name, oldest) for name, oldest in ENGINES.items()}
    if as_json:
        print(json.dumps({name: reason or "usable" for name, reason in reasons.items()}, indent=2))
        return
    table = Table("", "usable here", "what it needs", box=None)
    for name, reason in reasons.items():
        table.add_row(name, "[red]no[/]" if reason else "[green]yes[/]", escape(reason or ""))
    Console().print(table)


def _engine_problem(name: str, oldest: str) -> str | None:
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return f"{name} is not installed: pip install 'lz-penalty[{name}]'"
    have, need = (tuple(int(part) for part in text.split(".")[:2]) for text in (version, oldest))
    return None if have >= need else f"{name} {version} is older than {oldest}, the oldest that is tested"
