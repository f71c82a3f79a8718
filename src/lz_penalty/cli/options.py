"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from lz_penalty._files import read_text
from lz_penalty.errors import LZPenaltyError

__all__ = [
    "ABOUT_MODEL",
    "ABOUT_OUTPUT",
    "CHAT",
    "DEVICE",
    "DTYPE",
    "FILE",
    "JSON",
    "MODEL",
    "MODELS",
    "PART",
    "TEXTS",
    "text_of",
]

MAX_RECORD = 8 * 2**20  # bytes, the default of `detect`

# Headings of groups of options in the help.
ABOUT_MODEL = "Model"
ABOUT_OUTPUT = "Output"

MODELS = "bundled, smollm2, a GGUF file, a Hugging Face id, or a folder."
MODEL: Any = typer.Option("bundled", "--model", "-m", metavar="MODEL", help=MODELS, rich_help_panel=ABOUT_MODEL)
DEVICE: Any = typer.Option("auto", metavar="NAME", help="auto, cpu, cuda, cuda:1 or mps.", rich_help_panel=ABOUT_MODEL)
DTYPE: Any = typer.Option(
    "auto",
    metavar="NAME",
    help="auto, float32, bfloat16 or float16; auto is float32 on a CPU, else the model's own.",
    rich_help_panel=ABOUT_MODEL,
)
CHAT: Any = typer.Option(
    None,
    "--chat/--no-chat",
    help="Put prompts into the model's chat template, or not.",
    show_default="if it has one; not for bundled",
    rich_help_panel=ABOUT_MODEL,
)
JSON: Any = typer.Option(False, "--json", help="Print JSON instead of tables.", rich_help_panel=ABOUT_OUTPUT)
TEXTS: Any = typer.Option(
    "all",
    metavar="NUMBER|FILE",
    help="Measure harm on this many bundled texts of each kind, or on the texts of this file: JSON lines with `text` and "
    "optionally `kind`.",
)
PART: Any = typer.Option(
    "all", metavar="NAME", help="Of the bundled texts: all, choose (for choosing settings) or publish (the others)."
)
FILE: Any = typer.Option(None, "--file", "-f", help="Read the text from this file, without its last line end.")


def text_of(what: str, given: str, file: Path | None) -> str:
    """Return the text from the argument or the file, without the file's last line end.

    Raises an error if there is no text, if both are given, or if the text is not UTF-8.
    """
    if file is not None and given:
        raise LZPenaltyError(f"the {what} is given twice: use the argument or --file, not both.")
    if file is not None:
        try:
            given = read_text(file, MAX_RECORD)
            given = given.removesuffix("\r\n" if given.endswith("\r\n") else "\n")  # the line end of the file
        except FileNotFoundError:
            raise LZPenaltyError(f"--file {file}: file not found.") from None
        except OSError as error:
            raise LZPenaltyError(f"--file {file}: cannot be read ({error.strerror or error}).") from None
        except UnicodeDecodeError as error:
            raise LZPenaltyError(f"--file {file}: cannot be read as UTF-8 text ({error}).") from None
    try:
        given.encode()  # bytes of an argument that are not UTF-8 arrive as surrogates
    except UnicodeEncodeError as error:
        raise LZPenaltyError(
            f"the {what} is not UTF-8 from character {error.start + 1:,} on: convert it first."
        ) from None
    if not given.strip():
        raise LZPenaltyError(f"the {what} is empty: give it as an argument or with --file.")
    return given
