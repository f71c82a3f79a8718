"""What commands print that comes from files and servers."""

from __future__ import annotations

from rich.text import Text

__all__ = ["SHOWN_PROBLEMS", "clean", "escaped"]

SHOWN_PROBLEMS = 20


def clean(text: str) -> Text:
    """Text of others, without what a terminal would obey."""
    return Text("".join(character if character.isprintable() else "\ufffd" for character in text))


def escaped(text: str, keep: str = "") -> str:
    r"""Text of others in which what a terminal would obey stands as Python writes it.

    >>> print(escaped("a\x1b[31m\nb", keep="\n"))
    a\x1b[31m
    b
    """
    return "".join(
        character if character.isprintable() or character in keep else character.encode("unicode_escape").decode()
        for character in text
    )
