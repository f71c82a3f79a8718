"""What `serve-llama` and `serve-mlx` share: options that are passed on to another program's server, and the help for ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import typer

from lz_penalty.engines.server import VARIABLE

__all__ = ["PASSED_ON", "help_first"]

# The command gets all its arguments as `context.args`, also --help.
PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
HELP = f"""\
{{program}}'s own server, with the LZ penalty. Requests to /v1/completions and /v1/chat/completions may have lz_* fields, such
as "lz_preset": "guarded"; a bad one gets status 400. The environment variable {VARIABLE} sets a default and caps for
all requests. Below are the options of this command, and all options of {{program}}'s server.
"""


@contextmanager
def help_first(arguments: Sequence[str], program: str) -> Iterator[None]:
    """Print our part before the help of a server. If the server is not installed, say so after our part."""
    asked = "--help" in arguments or "-h" in arguments
    if asked:
        typer.echo(HELP.format(program=program))
    try:
        yield
    except ModuleNotFoundError:
        if not asked:
            raise
        typer.echo(f"{program} is not installed here, so --help cannot list the options of its server.")
