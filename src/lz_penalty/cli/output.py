"""Print text from files and servers safely, and on any terminal."""

from __future__ import annotations

import logging
import sys
from importlib.util import find_spec
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

__all__ = ["clean", "escaped", "has_colour", "number_table", "print_problem", "say_chat", "say_loading", "warn_once"]

SHOWN_PROBLEMS = 20


def clean(text: str) -> Text:
    """Return untrusted text with control characters replaced, so that the terminal cannot obey them."""
    return Text("".join(character if character.isprintable() else "\ufffd" for character in text))


class _Once(logging.Filter):
    """Let a message through the first time only."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[str, str]] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is printed."""
        message = (record.name, record.getMessage())
        if message in self.seen:
            return False
        self.seen.add(message)
        return True


def warn_once() -> None:
    """Print each warning once in this process, and say which program it comes from."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.setFormatter(logging.Formatter("lz-penalty: warning: %(message)s"))
    handler.addFilter(_Once())
    logging.lastResort = handler  # of loggers that nobody configured


def has_colour(console: Console) -> bool:
    """Return whether colours are shown: not in a file or pipe, on a dumb terminal, or with NO_COLOR set."""
    return console.color_system is not None and not console.no_color


def say_chat(model: str, tokenizer: Any, chat: bool) -> None:
    """Print on standard error how prompts are given to the model."""
    if chat:
        how = "prompts are in the model's chat template (--no-chat gives them as plain text)"
    elif getattr(tokenizer, "chat_template", None):
        how = "prompts are plain text (--chat puts them into the model's chat template)"
    else:
        how = "prompts are plain text (the model has no chat template)"
    print(f"{escaped(model)}: {how}", file=sys.stderr)


def say_loading(model: str) -> None:
    """Print on standard error that a GGUF file is loaded, which takes up to a minute; raise if there is no such model."""
    from lz_penalty.explain._sources import source

    if source(model, tokenizer_only=True).options and find_spec("transformers"):
        print(f"loading {escaped(model)} ...", file=sys.stderr, flush=True)


def number_table(name: str, *columns: str | Text, title: str | None = None) -> Table:
    """Return a narrow table: the first column names the row, the others contain numbers. Nothing is ever cut, only folded."""
    numbers = [Column(column, justify="right", overflow="fold") for column in columns]
    names = Column(name, overflow="fold")
    return Table(names, *numbers, title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)


def print_problem(console: Console, number: int, problem: object) -> None:
    """Print a problem, counted from 1; after the first 20, only that there are more."""
    if number <= SHOWN_PROBLEMS:
        console.print(clean(f"lz-penalty: {problem}"), soft_wrap=True)
    elif number == SHOWN_PROBLEMS + 1:
        console.print("lz-penalty: further problems are counted but not shown; use --out to get all.")


def escaped(text: str, keep: str = "") -> str:
    r"""Return untrusted text with control characters as Python escapes.

    >>> print(escaped("a\x1b[31m\nb", keep="\n"))
    a\x1b[31m
    b
    """
    return "".join(
        character if character.isprintable() or character in keep else character.encode("unicode_escape").decode()
        for character in text
    )
