"""The command line, `lz-penalty`: one file per command."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from collections.abc import Callable
from typing import NoReturn

import typer

from lz_penalty.cli.compare import compare
from lz_penalty.cli.cost import cost
from lz_penalty.cli.demo import demo
from lz_penalty.cli.detect import detect
from lz_penalty.cli.doctor import doctor
from lz_penalty.cli.duality import duality
from lz_penalty.cli.evaluate import evaluate
from lz_penalty.cli.explain import explain
from lz_penalty.cli.generate import generate
from lz_penalty.cli.guard import guard
from lz_penalty.cli.help import Command, Overview, ServerCommand
from lz_penalty.cli.output import warn_once
from lz_penalty.cli.replay import replay
from lz_penalty.cli.report import report
from lz_penalty.cli.serve_llama import serve_llama
from lz_penalty.cli.serve_mlx import serve_mlx
from lz_penalty.cli.serving import PASSED_ON
from lz_penalty.errors import LZPenaltyError

# Modules that commands need, and the extra that installs each.
EXTRAS = {
    "torch": "transformers",
    "transformers": "transformers",
    **dict.fromkeys(("llama_cpp", "anyio", "starlette_context", "fastapi", "uvicorn"), "llama-cpp"),
    **dict.fromkeys(("mlx", "mlx_lm"), "mlx"),
    **dict.fromkeys(("httpx", "prometheus_client", "starlette", "tomli"), "guard"),
    "openai": "judge",
    "pyarrow": "detect",
    "ray": "ray",
    "constriction": "duality",
    "inspect_ai": "study",
    "inspect_evals": "study",
    "matplotlib": "study",
    "scipy": "study",
}

NO_ROOM = (errno.ENOSPC, errno.EROFS, getattr(errno, "EDQUOT", errno.ENOSPC))

HELP = """Stop language models from repeating themselves, with the Lempel-Ziv penalty.

Examples:
    lz-penalty demo
    lz-penalty explain "is it 12? Yes. is it 12? Yes. is it"
    lz-penalty compare none guarded --prompts 4 --tokens 200 --texts 1

lz-penalty COMMAND --help shows examples and all options of a command.
"""

# The commands in the order of the help, by what they are for.
SERVERS = "Run servers"
COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    "See it work": {"doctor": doctor, "demo": demo, "generate": generate},
    "Choose settings": {"compare": compare, "cost": cost, "replay": replay},
    SERVERS: {"serve-llama": serve_llama, "serve-mlx": serve_mlx, "guard": guard},
    "Look into texts": {"explain": explain, "detect": detect},
    "Studies": {"eval": evaluate, "report": report, "duality": duality},
}

STOCK_SERVERS = ("serve-llama", "serve-mlx")  # they pass their options on to a server of another program

app = typer.Typer(
    name="lz-penalty",
    cls=Overview,
    help=HELP,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for heading, commands in COMMANDS.items():
    for name, command in commands.items():
        kind = ServerCommand if heading == SERVERS else Command
        passes = name in STOCK_SERVERS
        settings = PASSED_ON if passes else None
        app.command(name, cls=kind, rich_help_panel=heading, context_settings=settings, add_help_option=not passes)(
            command
        )


@app.callback(invoke_without_command=True, help=HELP)
def _version(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        from lz_penalty import __version__

        typer.echo(__version__)
        raise typer.Exit


def _settle_temporary_folder() -> bool:
    """Return whether there is a folder for temporary files. If not, set one, so that importing libraries does not fail."""
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        shared = "/dev/shm"  # in a read-only container, often the only writable folder
        tempfile.tempdir = shared if os.access(shared, os.W_OK) else "/tmp"
    return os.access(tempfile.gettempdir(), os.W_OK)


def main() -> None:
    """Run the command line. Invalid input prints one line and exits with code 2."""
    temporary = _settle_temporary_folder()
    warn_once()
    try:
        try:
            app(prog_name="lz-penalty")
        finally:
            sys.stdout.flush()
    except LZPenaltyError as error:
        _end(str(error))
    except ModuleNotFoundError as error:
        name = (error.name or "").split(".")[0]
        if name not in EXTRAS:
            raise
        _end(f"this needs {name}: pip install 'lz-penalty[{EXTRAS[name]}]'")
    except Exception as error:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the rest cannot be written either
            _end(f"{error.filename or 'the output'}: cannot be written ({error.strerror}).")
        if temporary:
            raise
        _end("this needs a folder for temporary files: mount one at /tmp, or set TMPDIR to a writable folder.")


def _end(message: str) -> NoReturn:
    print(f"lz-penalty: {message}", file=sys.stderr)
    sys.exit(2)
