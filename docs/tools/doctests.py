"""Show the doctests of docstrings as code blocks in the documentation site."""

from __future__ import annotations

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"^( *)>>> .*(?:\n(?! *$).*)*", re.MULTILINE)


def fenced(docstring: str) -> str:
    r"""Return the docstring with a fence around each doctest. A doctest ends at the next empty line.

    >>> fenced("Adds.\n\n>>> 1 + 1\n2\n\nMore.")
    'Adds.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nMore.'
    """
    return _DOCTEST.sub(lambda found: f"{found[1]}```pycon\n{found[0]}\n{found[1]}```", docstring)


class Doctests(griffe.Extension):
    """An extension that Griffe calls for every object that the site shows."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of the object."""
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)
