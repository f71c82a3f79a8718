"""Print text from files and servers safely."""

from __future__ import annotations

from rich.text import Text

__all__ = ["SHOWN_PROBLEMS", "clean", "escaped"]

SHOWN_PROBLEMS = 20


def clean(text: str) -> Text:
    """Return untrusted text with control characters replaced, so that the terminal cannot obey them."""
    return Text("".join(character if character.isprintable() else "\ufffd" for character in text))


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
