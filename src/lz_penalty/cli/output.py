"""Print text from files and servers safely."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

__all__ = ["clean", "escaped", "print_problem"]

SHOWN_PROBLEMS = 20


def clean(text: str) -> Text:
    """Return untrusted text with control characters replaced, so that the terminal cannot obey them."""
    return Text("".join(character if character.isprintable() else "\ufffd" for character in text))


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
