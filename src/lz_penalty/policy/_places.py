"""Follow a text byte by byte: is it in prose, fenced code, JSON, or between two markers? Each place is immutable.

    place = Prose()
    for byte in text:
        place = place.after(byte)

`section` is the section of the next byte: a section begins after the byte that opens it and ends after the byte that
closes it. Every value is bounded, so the number of places is finite. A byte that changes nothing returns the same
object. `_sections` searches for the markers.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ANSWER", "CODE", "SECTIONS", "TABLE", "THINKING", "TOOL_CALL", "Code", "Json", "Marked", "Pair", "Prose"]

SECTIONS = THINKING, ANSWER, CODE, TOOL_CALL, TABLE = "thinking", "answer", "code", "tool_call", "table"

# The position in a line: in the indentation; in a run of fence characters that began the line; in the blanks after that
# run; in the info string after it; anywhere else.
START, RUN, TAIL, INFO, MIDDLE = range(5)

TAB, NEWLINE, BACKTICK, PIPE, QUOTE, BACKSLASH = b'\t\n`|"\\'
BLANKS = frozenset(b" \t\r")
INDENTS = frozenset(b" \t\r>")  # a fence or table may be in a quotation
FENCES = frozenset(b"`~")
WORDS = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
JSON_OPENS, JSON_CLOSES = frozenset(b"{["), frozenset(b"}]")
JSON_BLANKS, JSON_NUMBERS = frozenset(b" \t\r\n"), frozenset(b"-0123456789")
JSON_REST = JSON_BLANKS | JSON_NUMBERS | frozenset(b",:+.eEtrufalsn")  # true, false, null
TRIGGERS = b'\n`~|{[>"\\'  # a token with a word and without one of these only moves on within its line

LEAST_RUN, MOST_FENCES, MOST_DEPTH = 3, 8, 256
MOST_RUN, MOST_INDENT = 16, 16  # larger numbers count as this one, to limit the number of places


@dataclass(frozen=True, slots=True)
class Pair:
    """The markers around a section, "thinking" or "tool_call". Without `close`, it lasts to the end of the turn."""

    section: str
    open: str
    close: str | None = None


@dataclass(frozen=True, slots=True)
class Fence:
    """The line that opened a code block."""

    char: int
    run: int
    indent: int


def _indented(indent: int, byte: int) -> int:
    return min(indent + (4 if byte == TAB else 1), MOST_INDENT)


@dataclass(frozen=True, slots=True)
class Prose:
    """In the text of an answer, including its tables."""

    line: int = START
    indent: int = 0
    run: int = 0
    char: int = 0
    inline: bool = False
    table: bool = False

    @property
    def section(self) -> str:
        """The section. Three backticks or tildes open a code fence; a table ends at a line without a pipe at its start."""
        if self.run >= LEAST_RUN:
            return CODE
        return TABLE if self.table else ANSWER

    @property
    def takes_markers(self) -> bool:
        """Whether a marker counts here; in inline code, tables and info strings it is only mentioned."""
        return not (self.inline or self.table or self.run)

    def after(self, byte: int) -> Place:
        """Return the place after one more byte."""
        if self.line == MIDDLE:
            if byte == NEWLINE:
                return Prose(table=self.table)
            return Prose(MIDDLE, inline=not self.inline, table=self.table) if byte == BACKTICK else self
        if self.line == START:
            return self._begun(byte)
        if self.line == RUN and byte == self.char:
            return self if self.run == MOST_RUN else Prose(RUN, self.indent, self.run + 1, byte)
        if self.run < LEAST_RUN:
            return Prose(MIDDLE, inline=self.char == BACKTICK and self.run % 2 == 1).after(byte)
        if byte == NEWLINE:
            return Code((Fence(self.char, self.run, self.indent),))
        if byte == BACKTICK == self.char:  # not a fence, but inline code at the start of the line
            return Prose(MIDDLE, inline=self.run % 2 == 0)
        return self if self.line == INFO else Prose(INFO, self.indent, self.run, self.char)

    def _begun(self, byte: int) -> Place:
        if byte in INDENTS:
            indent = _indented(self.indent, byte)
            return self if indent == self.indent else Prose(START, indent, table=self.table)
        if byte in FENCES:
            return Prose(RUN, self.indent, 1, byte)
        if byte in JSON_OPENS:
            return Json(1, sure=False)
        return Prose() if byte == NEWLINE else Prose(MIDDLE, table=byte == PIPE)


@dataclass(frozen=True, slots=True)
class Code:
    """In one or more code fences; the last one is the innermost. Inside a fence, one with an info string opens another."""

    fences: tuple[Fence, ...]
    line: int = START
    indent: int = 0
    run: int = 0

    section = CODE
    takes_markers = False

    def after(self, byte: int) -> Place:
        """Return the place after one more byte."""
        if byte == NEWLINE:
            return self._next_line()
        if self.line == MIDDLE:
            return self
        fence = self.fences[-1]
        if self.line == START and byte in INDENTS:
            indent = _indented(self.indent, byte)
            return self if indent == self.indent else Code(self.fences, START, indent)
        if self.line in (START, RUN) and byte == fence.char:
            return self if self.run == MOST_RUN else Code(self.fences, RUN, self.indent, self.run + 1)
        if self.line in (RUN, TAIL) and byte in BLANKS:
            return self if self.line == TAIL else Code(self.fences, TAIL, self.indent, self.run)
        if self.line in (RUN, TAIL) and self.run >= fence.run and byte in WORDS:
            return Code(self.fences, INFO, self.indent, self.run)
        if self.line == INFO and not byte == BACKTICK == fence.char:
            return self
        return Code(self.fences, MIDDLE)

    def _next_line(self) -> Place:
        fence = self.fences[-1]
        if self.line in (RUN, TAIL) and self.run >= fence.run and self.indent <= fence.indent + 3:
            return Code(self.fences[:-1]) if len(self.fences) > 1 else Prose()
        if self.line == INFO and len(self.fences) < MOST_FENCES:
            return Code((*self.fences, Fence(fence.char, self.run, self.indent)))
        return Code(self.fences)


@dataclass(frozen=True, slots=True)
class Json:
    """In JSON that began a line. A byte that JSON cannot contain ends it, and the text is prose again.

    `sure` is true once the first byte after the opening bracket can be JSON. `string` is 0 outside of strings, 1 inside,
    2 after a backslash.
    """

    depth: int
    string: int = 0
    sure: bool = True

    takes_markers = False

    @property
    def section(self) -> str:
        """The section; not yet a tool call after a single bracket, which may also begin a link."""
        return TOOL_CALL if self.sure else ANSWER

    def after(self, byte: int) -> Place:
        """Return the place after one more byte."""
        if self.string:
            if byte == NEWLINE:
                return Prose()
            if self.string == 2:
                return Json(self.depth, 1)
            return Json(self.depth, 2) if byte == BACKSLASH else Json(self.depth) if byte == QUOTE else self
        if byte == QUOTE:
            return Json(self.depth, 1)
        if byte in JSON_OPENS and self.depth < MOST_DEPTH:
            return Json(self.depth + 1)
        if byte in JSON_CLOSES:
            return Json(self.depth - 1) if self.depth > 1 else Prose(MIDDLE)
        if self.sure:
            return self if byte in JSON_REST else Prose(MIDDLE).after(byte)
        if byte in JSON_BLANKS:
            return self
        return Json(self.depth) if byte in JSON_NUMBERS else Prose(MIDDLE).after(byte)


@dataclass(frozen=True, slots=True)
class Marked:
    """Between two markers, where only markers matter. `around` is the thinking that a tool call interrupts."""

    pair: Pair
    around: Pair | None = None

    takes_markers = False

    @property
    def section(self) -> str:
        """The section of the markers."""
        return self.pair.section

    def after(self, byte: int) -> Place:
        """Return this place: only a marker ends it."""
        return self


Place = Prose | Code | Json | Marked
