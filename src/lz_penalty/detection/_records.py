"""Read documents from files, one at a time: text, JSON lines and Parquet, also compressed.

A document that cannot be read becomes a `Problem` with the file and the line, and reading continues after it.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

from lz_penalty._checks import boolean, choice, integer
from lz_penalty.detection._parquet_rows import column_texts, list_index
from lz_penalty.errors import LZPenaltyError, bad_value, show

__all__ = [
    "MAX_RECORD",
    "Decoded",
    "Problem",
    "Reading",
    "Record",
    "decode",
    "dig",
    "fields_of",
    "parse",
    "read",
]

MAX_RECORD = 8 * 2**20
STDIN = "-"
# Why a text ended, in the words of OpenAI, vLLM, SGLang, llama.cpp and Anthropic: fields, and values that mean a limit.
CUT_OFF = {"finish_reason": ("length", "max_tokens"), "stop_reason": ("length", "max_tokens")}
FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".pq": "parquet"}
BOM = b"\xef\xbb\xbf"
# Errors of a file that is missing, forbidden, broken or cut short; pyarrow's errors are among them.
READ_ERRORS = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError)
AT_ONCE = 64  # times `max_record`: how many bytes of a Parquet file may be decoded at once
XZ_MEMORY = 256 * 2**20  # for the history of an .xz file; `xz -9` needs 65 MiB


@dataclass(frozen=True)
class Problem:
    """A file, line or row that could not be read, and why.

    Args:
        source: the file.
        line: the line, or the row of a Parquet file, from 1; `None` for the whole file.
        message: what is wrong and what to do.
    """

    source: str
    line: int | None
    message: str

    def __str__(self) -> str:
        return f"{self.source}{'' if self.line is None else f':{self.line}'}: {self.message}"


@dataclass(frozen=True)
class Record:
    """A document before `decode`: the bytes of a file or of a JSON line, or the text of a Parquet row."""

    source: str
    line: int | None
    data: bytes | str

    @property
    def blank(self) -> bool:
        """Whether this is an empty line, which does not count as a document."""
        return self.line is not None and isinstance(self.data, bytes) and not self.data.strip()


class Decoded(NamedTuple):
    """The text of a document, and whether a limit on tokens cut it off."""

    text: str
    capped: bool


@dataclass(frozen=True)
class Reading:
    """The settings for reading documents.

    Args:
        format: `text` (one document per file), `jsonl`, `parquet`, or `auto`: by the file's name. Files of other names are
            texts, or JSON lines if a field is given.
        field: the path of the text in a JSON line or a Parquet row: names of fields and indices of lists, with dots. The
            default is `text`.
        max_record: the largest allowed size in bytes of a text file, a whole JSON line, or a text in a Parquet file.
        capped: whether a limit on tokens cut off all texts. If not, the fields `finish_reason` and `stop_reason` of a JSON
            line say so for its text.
    """

    format: str = "auto"
    field: str | None = None
    max_record: int = MAX_RECORD
    capped: bool = False

    def __post_init__(self) -> None:
        choice("auto", "text", "jsonl", "parquet")("format", self.format)
        integer(1, 2**30)("max_record", self.max_record)
        boolean("capped", self.capped)
        if not isinstance(self.path, str) or not all(map(_is_part, self.path.split("."))) or len(self.path) > 1_000:
            raise bad_value("field", self.field, "names and numbers separated by dots, such as text or choices.0.text")
        if self.format == "text" and self.field is not None:
            raise LZPenaltyError(
                f"field = {show(self.field)}: a file of the format text has no fields. Use the format jsonl or parquet, or "
                "leave the field out."
            )

    @property
    def path(self) -> str:
        """The path of the text in a JSON line or a Parquet row."""
        return "text" if self.field is None else self.field

    def format_of(self, source: str) -> tuple[str, str]:
        """Return the format and the compression of a file; the compression may be empty.

        >>> Reading().format_of("outputs.jsonl.gz"), Reading().format_of("answer.md"), Reading(field="text").format_of("-")
        (('jsonl', '.gz'), ('text', ''), ('jsonl', ''))
        """
        name = source.lower()
        compression = next((end for end in OPENERS if end and name.endswith(end)), "")
        name = name.removesuffix(compression)
        unknown = "text" if self.field is None else "jsonl"
        by_name = next((kind for end, kind in FORMATS.items() if name.endswith(end)), unknown)
        return (by_name if self.format == "auto" else self.format), compression


def _is_part(part: str) -> bool:
    """Return whether this can be a part of a field's path; a number with two minus signs is a typing error."""
    return bool(part) and not (part.startswith("--") and part.lstrip("-").isdecimal())


def read(
    source: str, reading: Reading, *, tick: Callable[[int], Any] | None = None, span: range | None = None
) -> Iterator[Record | Problem]:
    """Yield the documents of a file, or of standard input for `-`.

    Args:
        source, reading: the file, and how to read it.
        tick: called with the number of bytes read from the file since the last call.
        span: read only the lines that begin in this range of bytes of a JSON lines file, and count lines from the first
            of them. Blank lines are included, so that the caller can count lines too.
    """
    kind, compression = reading.format_of(source)
    records = {"text": _text, "jsonl": _lines, "parquet": _rows}[kind]
    last: Record | Problem | None = None
    try:
        with io.BufferedReader(_Counted(source, tick), 2**18) as file, OPENERS[compression](file) as stream:
            for record in records(stream, source, reading, span):
                if span is not None or isinstance(record, Problem) or not record.blank:
                    last = record
                    yield record
    except MemoryError:
        yield Problem(source, None, "not enough memory.")
    except READ_ERRORS as error:
        line = last.line + 1 if last and last.line else None
        yield Problem(source, line, f"cannot be read{' further' if last else ''}: {_reason(error)}.")
    else:
        if last is None and span is None:
            yield Problem(source, None, "contains no documents." if kind != "text" else "is empty.")


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split())[:200] or type(error).__name__


class _Counted(io.FileIO):
    """A file, or standard input for `-`, that reports how many bytes were read."""

    def __init__(self, source: str, tick: Callable[[int], Any] | None) -> None:
        super().__init__(sys.stdin.fileno() if source == STDIN else source, closefd=source != STDIN)
        self._tick = tick

    def readinto(self, buffer: Any) -> int | None:
        count = super().readinto(buffer)
        if self._tick is not None:
            self._tick(count or 0)
        return count


def _zstd(stream: IO[bytes]) -> IO[bytes]:
    import pyarrow

    file = pyarrow.PythonFile(stream, mode="r")
    return io.BufferedReader(pyarrow.CompressedInputStream(file, "zstd"), 2**18)


class _Xz(io.RawIOBase):
    """An .xz file with a memory limit; `lzma.open` allocates what the file's header requests, up to 4 GB."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._decoder = stream, self._new()

    def _new(self) -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(memlimit=XZ_MEMORY)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = b""
        while not data:
            given = b""
            if self._decoder.eof:  # another stream may follow, after zero bytes
                given = self._decoder.unused_data.lstrip(b"\0")
                while not given:
                    more = self._stream.read(2**16)
                    if not more:
                        return 0
                    given = more.lstrip(b"\0")
                self._decoder = self._new()
            elif self._decoder.needs_input:
                given = self._stream.read(2**16)
                if not given:
                    raise EOFError("Compressed file ended before the end-of-stream marker was reached")
            data = self._decoder.decompress(given, len(buffer))
        buffer[: len(data)] = data
        return len(data)


OPENERS: dict[str, Callable[[IO[bytes]], Any]] = {
    "": nullcontext,
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lambda stream: io.BufferedReader(_Xz(stream), 2**18),
    ".zst": _zstd,
}


def _too_long(source: str, line: int | None, reading: Reading) -> Problem:
    return Problem(source, line, f"longer than {reading.max_record:,} bytes; raise --max-record to read it.")


def _text(stream: IO[bytes], source: str, reading: Reading, _: range | None) -> Iterator[Record | Problem]:
    data = stream.read(reading.max_record + 1)
    if len(data) > reading.max_record:
        yield _too_long(source, None, reading)
    elif data:
        yield Record(source, None, data)


def _lines(stream: IO[bytes], source: str, reading: Reading, span: range | None) -> Iterator[Record | Problem]:
    position = _go_to(stream, span.start) if span is not None else 0
    number = 0
    while (span is None or position < span.stop) and (line := stream.readline(reading.max_record + 1)):
        number += 1
        position += len(line)
        if len(line) > reading.max_record and not line.endswith(b"\n"):
            position += _skip_line(stream)
            yield _too_long(source, number, reading)
        else:
            yield Record(source, number, line)


def _go_to(stream: IO[bytes], start: int) -> int:
    """Move to the first line that begins at or after `start`."""
    if not start:
        return 0
    stream.seek(start - 1)
    return start - 1 + _skip_line(stream)


def _skip_line(stream: IO[bytes]) -> int:
    """Skip to the next line in small steps and return the number of bytes skipped."""
    skipped = 0
    while part := stream.readline(2**20):
        skipped += len(part)
        if part.endswith(b"\n"):
            break
    return skipped


def _rows(stream: IO[bytes], source: str, reading: Reading, _: range | None) -> Iterator[Record | Problem]:
    for number, found in enumerate(column_texts(stream, reading.path, AT_ONCE * reading.max_record), 1):
        if not isinstance(found, memoryview):
            column = reading.path.split(".")[0]
            yield Problem(source, number, _no_text(found, reading, f"its column: {column}"))
        elif len(found) > reading.max_record:
            yield _too_long(source, number, reading)
        else:
            try:
                yield Record(source, number, str(found, "utf-8"))
            except UnicodeDecodeError as error:
                yield Problem(source, number, _not_utf8(found[error.start]))


def _not_utf8(byte: int) -> str:
    return f"not UTF-8 (byte {byte:#04x}); convert the file."


def _no_text(kind: str | None, reading: Reading, fields: str) -> str:
    if kind is None:
        return f"there is no field {reading.path!r} ({fields}); choose one with --field."
    return f"field {reading.path!r} contains {kind}, not text ({fields}); choose another with --field."


def decode(record: Record, reading: Reading) -> Decoded | Problem:
    """Return the text of a document and whether it was cut off, or the problem with it."""
    if isinstance(record.data, str):
        return Decoded(record.data, reading.capped)
    found = parse(record)
    if isinstance(found, Problem):
        return found
    if record.line is None:
        text = found.removesuffix("\r\n" if found.endswith("\r\n") else "\n")  # the line end of the file
        return Decoded(text, reading.capped)
    text = dig(found, reading.path)
    if not isinstance(text, str):
        kind = None if text is None else type(text).__name__
        return Problem(record.source, record.line, _no_text(kind, reading, fields_of(found)))
    return Decoded(text, reading.capped or _cut_off(found, reading.path))


def _cut_off(found: Any, field: str) -> bool:
    """Return whether the record says that a limit on tokens cut the text off, beside the text or in an object around it."""
    parts = field.split(".")
    for size in reversed(range(len(parts))):
        around = dig(found, ".".join(parts[:size])) if size else found
        if isinstance(around, dict):
            reasons = {name: around[name] for name in CUT_OFF if isinstance(around.get(name), str)}
            if reasons:
                return any(reason in CUT_OFF[name] for name, reason in reasons.items())
    return False


def parse(record: Record) -> Any | Problem:
    """Return the value of a JSON line or the text of a whole file, or the problem with it."""
    data = record.data
    assert isinstance(data, bytes)  # a row of a Parquet file needs no parsing
    try:
        text = data.removeprefix(BOM).decode("utf-8")
    except UnicodeDecodeError as error:
        line = record.line or data.count(b"\n", 0, error.start) + 1
        return Problem(record.source, line, _not_utf8(data[error.start]))
    if record.line is None:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        return Problem(record.source, record.line, f"not JSON: {_reason(error)}.")


def fields_of(found: Any) -> str:
    """Return the names of an object's fields, for a message."""
    return f"its fields: {', '.join(map(str, found))[:100]}" if isinstance(found, dict) else "it is not an object"


def dig(found: Any, field: str) -> Any:
    """Return the value at a path such as `choices.0.message.content`, or `None`."""
    for name in field.split("."):
        if isinstance(found, dict):
            found = found.get(name)
        elif isinstance(found, list) and (index := list_index(name, len(found))) is not None:
            found = found[index]
        else:
            return None
    return found
