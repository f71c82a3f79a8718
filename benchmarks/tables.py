"""Helpers of the `*_tables` modules: results files, Markdown tables and the paragraphs below them."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable
from typing import Any

from benchmarks.workload import RESULTS

VERSIONS = ("python", "numpy", "numba", "torch", "triton", "transformers")


def results(name: str) -> dict[str, Any]:
    """Return the content of a file in benchmarks/results."""
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Return the lines of a Markdown table.

    >>> table(["a", "b"], [["1", ""]])
    ['| a | b |', '|---|---|', '| 1 | |']
    """
    columns = list(columns)
    return [_line(columns), "|---" * len(columns) + "|", *map(_line, rows)]


def _line(cells: Iterable[str]) -> str:
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)


def paragraph(text: str) -> list[str]:
    """Return the text in lines of the documentation's width."""
    return textwrap.wrap(text, 118, break_on_hyphens=False)


def bullets(points: Iterable[str]) -> list[str]:
    """Return a Markdown list in lines of the documentation's width.

    >>> bullets(["One.", "Two."])
    ['- One.', '- Two.']
    """
    return [
        line
        for point in points
        for line in textwrap.wrap(f"- {point}", 118, subsequent_indent="  ", break_on_hyphens=False)
    ]


def machine(data: dict[str, Any], versions: Iterable[str] = VERSIONS) -> str:
    """Return the processor that a result was measured on, and the versions of these packages."""
    about = data["machine"]
    return f"{about.get('gpu') or about['cpu']}; " + ", ".join(
        f"{name} {about[name]}" for name in versions if about.get(name)
    )


def signed(number: float) -> str:
    """Return a number with its sign and three decimals; zero has no sign.

    >>> signed(0.25), signed(-0.0004)
    ('+0.250', '0.000')
    """
    text = f"{number:+.3f}"
    return text[1:] if float(text) == 0 else text
