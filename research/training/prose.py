"""Turn plain-text books into running prose: plain quotes, joined lines, no tables, verse or notices."""

from __future__ import annotations

import re
from collections.abc import Iterator

BOOK_END = "\n<|endoftext|>\n"

_PLAIN = str.maketrans(
    {
        "\u201c": '"',
        "\u201d": '"',
        "\u2018": "'",
        "\u2019": "'",
        "\u2014": "--",
        "\u2013": "-",
        "\u2026": "...",
        "\u00a0": " ",
        "\ufeff": "",
        "_": "",
    }
)
_NOTICE = re.compile(
    r"Produced by|Proofread|Transcri|https?:|www\.|e-?text|Gutenberg|ebook|copyright|public domain|\.(?:net|org|htm)\b"
    r"|ISBN|Illustration|Footnote",
    re.IGNORECASE,
)
_HEADING = re.compile(r"(?:CHAPTER|BOOK|PART|Chapter|Book|Part) [IVXLC\d]{1,7}\.?")


def paragraphs(book: str) -> Iterator[str]:
    """Yield the paragraphs of prose and the chapter headings of one book."""
    for block in re.split(r"\n\s*\n", book.translate(_PLAIN)):
        lines = block.strip("\n").split("\n")
        text = re.sub(r"\s+", " ", block).strip()
        if _HEADING.fullmatch(text) or (_is_prose(lines, text) and not _NOTICE.search(text)):
            yield text


def _is_prose(lines: list[str], text: str) -> bool:
    """Tell sentences from verse, tables, lists and titles."""
    if len(text) < 2 or lines[0].startswith("    ") or text[-1] not in ".!?\"':;,-)]":
        return False
    full = [line for line in lines[:-1] if len(line) > 50]
    letters = sum(c.isalpha() or c.isspace() for c in text)
    return len(full) >= 0.8 * (len(lines) - 1) and letters > 0.75 * len(text) and "  " not in lines[0].strip()[:40]
