"""For the documentation site: doctests of docstrings are shown as code, wherever in a docstring they stand."""

from __future__ import annotations

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"^( *)>>> .*(?:\n(?! *$).*)*", re.MULTILINE)


def fenced(docstring: str) -> str:
    r"""The docstring with each doctest, from its prompt to the next empty line, in a fence.

    >>> fenced("Adds.\n\n>>> 1 + 1\n2\n\nMore.")
    'Adds.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nMore.'
    """
    return _DOCTEST.sub(lambda found: f"{found[1]}```pycon\n{found[0]}\n{found[1]}```", docstring)


class Doctests(griffe.Extension):
    """Griffe calls it for every object that the site shows."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite its docstring."""
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)
