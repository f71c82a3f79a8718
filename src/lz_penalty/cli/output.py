"""What commands print that comes from files and servers."""

from __future__ import annotations

from rich.text import Text

__all__ = ["SHOWN_PROBLEMS", "clean"]

SHOWN_PROBLEMS = 20


def clean(text: str) -> Text:
    """Text of others, without what a terminal would obey."""
    return Text("".join(character if character.isprintable() else "\ufffd" for character in text))
