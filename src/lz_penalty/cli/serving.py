"""What `serve-llama` and `serve-mlx` share: they pass their options on to another program's server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

__all__ = ["PASSED_ON", "help_first"]

# The command gets all its arguments as `context.args`, also --help.
PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@contextmanager
def help_first(context: typer.Context, program: str) -> Iterator[None]:
    """Print our help before the help of a server. If the server is not installed, say so after our help."""
    asked = "--help" in context.args or "-h" in context.args
    if asked:
        typer.echo(context.get_help())
    try:
        yield
    except ModuleNotFoundError:
        if not asked:
            raise
        typer.echo(f"\n{program} is not installed here: its options are not listed.")
