"""Texts on which the harm of a penalty is measured: prose, Python code, JSON and Markdown.

Each text is an unchanged part of a named, permissively licensed original. `licences.txt.xz` contains the licences;
research/texts/README.md lists the originals and says how the files were made. Settings are chosen on one half of the texts,
and results are published on the other half.
"""

from __future__ import annotations

import json
import lzma
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from lz_penalty._checks import choice

__all__ = ["KINDS", "PARTS", "Text", "texts"]

KINDS = ("prose", "code", "json", "markdown")
PARTS = ("all", "choose", "publish")

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Text:
    """A text of 800 to 1,500 tokens.

    Args:
        name: the kind and the number within it, such as `code-03`.
        kind: one of `KINDS`.
        source: the archive, the file in it, and the lines.
        licence: as an SPDX identifier.
        sha256: of the original file.
        text: the text itself.
    """

    name: str
    kind: str
    source: str
    licence: str
    sha256: str
    text: str


def texts(kind: str, part: str = "all") -> list[Text]:
    """Return the texts of a kind: all, the even-numbered ones to `choose` settings on, or the odd-numbered ones to `publish`.

    >>> [text.name for text in texts("code", "publish")][:3]
    ['code-01', 'code-03', 'code-05']
    """
    choice(*KINDS)("kind", kind)
    choice(*PARTS)("part", part)
    found = [text for text in _all() if text.kind == kind]
    return {"all": found, "choose": found[::2], "publish": found[1::2]}[part]


@cache
def _all() -> tuple[Text, ...]:
    with lzma.open(_HERE / "texts.jsonl.xz", "rt", encoding="utf-8") as file:
        return tuple(Text(**json.loads(line)) for line in file)
