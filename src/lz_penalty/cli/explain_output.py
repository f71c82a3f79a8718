"""The picture of `lz-penalty explain`: the end of the text with its matches, in colour or with a row of marks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from lz_penalty.cli.output import escaped, has_colour

if TYPE_CHECKING:
    from lz_penalty.explain import Explanation
    from lz_penalty.explain._tokenizing import Tokenizer

__all__ = ["picture"]

SHOWN_TOKENS = 600  # at the end of the text


class Part(NamedTuple):
    """A part of the text: its name in the legend, its style, and its mark where there are no colours."""

    name: str
    style: str
    mark: str


PAST = Part("before the window", "dim", ".")
MATCH = Part("longest match", "black on cyan", "=")
NEXT = Part("extends it", "black on yellow", "^")
BUFFER = Part("buffer", "underline", "-")
MATCH_IN_BUFFER = Part("match in the buffer", f"{MATCH.style} {BUFFER.style}", "#")
NEXT_IN_BUFFER = Part("extends it", f"{NEXT.style} {BUFFER.style}", "^")
REST = Part("", "", " ")
LEGEND = (PAST, MATCH, NEXT, BUFFER)


def picture(ids: list[int], step: Explanation, tokenizer: Tokenizer, console: Console) -> Iterator[Text]:
    """Yield the end of the text with its parts marked, and the legend."""
    first = max(0, len(ids) - SHOWN_TOKENS)
    if first:
        yield Text(f"({first:,} tokens before)")
    parts = _parts(len(ids), step)
    pieces = []
    for part, places in groupby(range(first, len(ids)), key=parts.__getitem__):
        pieces.append((escaped(tokenizer.decode([ids[i] for i in places]), keep="\n"), part))
    if has_colour(console):
        yield Text.assemble(*((text, part.style) for text, part in pieces))
        yield Text("\n").append(Text("  ").join([Text(part.name, style=part.style) for part in LEGEND])).append("\n")
        return
    yield from map(Text, _with_marks(pieces, console.width))
    used = {part.mark for _, part in pieces}
    legend = [part for part in (*LEGEND, MATCH_IN_BUFFER) if part.mark in used]
    names = [f"{part.mark} {part.name}" for part in legend]
    row = "   ".join(names)
    yield Text("\n" + (row if len(row) <= console.width else "\n".join(names)) + "\n")


def _parts(length: int, step: Explanation) -> list[Part]:
    """Return the part of each token."""
    parts = [PAST if i < step.window[0] else REST for i in range(length)]
    for match in step.matches:
        parts[match.start : match.stop] = [MATCH] * match.length
    for match in step.matches:
        if match.extends:
            parts[match.stop] = NEXT
    in_buffer = {REST: BUFFER, PAST: BUFFER, MATCH: MATCH_IN_BUFFER, NEXT: NEXT_IN_BUFFER}
    for i in range(step.buffer[0], length):
        parts[i] = in_buffer[parts[i]]
    return parts


def _with_marks(pieces: list[tuple[str, Part]], width: int) -> Iterator[str]:
    """Yield the lines of the text, and after each line with marks the row of its marks."""
    characters = [(character, part.mark * cell_len(character)) for text, part in pieces for character in text]
    for line in _lines(characters, width):
        yield "".join(character for character, _ in line)
        marks = "".join(mark for _, mark in line).rstrip()
        if marks:
            yield marks


def _lines(characters: list[tuple[str, str]], width: int) -> Iterator[list[tuple[str, str]]]:
    """Yield the characters line by line: at newlines, else after the last space that fits, else where the line is full."""
    line: list[tuple[str, str]] = []
    used = 0
    for character, mark in characters:
        if character == "\n":
            yield line
            line, used = [], 0
            continue
        if used + cell_len(character) > width:
            spaces = [i for i, (one, _) in enumerate(line) if one == " "]
            end = spaces[-1] + 1 if spaces else len(line)
            yield line[:end]
            line = line[end:]
            used = sum(cell_len(one) for one, _ in line)
        line.append((character, mark))
        used += cell_len(character)
    if line:
        yield line
