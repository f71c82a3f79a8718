"""Documents from files, one at a time: text, JSON lines and Parquet, also compressed. Reads and decodes, judges nothing.

Whatever cannot be read is a `Problem` that names the file and the line, and reading goes on after it.
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
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import IO, Any

from lz_penalty.checks import choice, integer
from lz_penalty.errors import bad_value

__all__ = [
    "MAX_RECORD",
    "Problem",
    "Reading",
    "Record",
    "Span",
    "decode",
    "dig",
    "fields_of",
    "format_of",
    "parse",
    "read",
]

MAX_RECORD = 8 * 2**20
STDIN = "-"
FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".pq": "parquet"}
BOM = b"\xef\xbb\xbf"
# What a file that is missing, forbidden, broken or cut short raises; pyarrow's errors are among them.
READ_ERRORS = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError)
BATCH_BYTES = 4 * 2**20  # of Parquet rows decoded at once


@dataclass(frozen=True)
class Problem:
    """Something that could not be read, and why.

    Args:
        source: the file.
        line: line of a text or JSON lines file, row of a Parquet file, from 1; `None` where it is the whole file.
        message: what is wrong and what to do.
    """

    source: str
    line: int | None
    message: str

    def __str__(self) -> str:
        return f"{self.source}{'' if self.line is None else f':{self.line}'}: {self.message}"


@dataclass(frozen=True)
class Record:
    """A document as it was read: a whole file, a line of JSON, or a row of a Parquet file; see `decode`."""

    source: str
    line: int | None
    data: bytes | dict[str, Any]

    @property
    def blank(self) -> bool:
        """Whether it is an empty line, which is no document."""
        return self.line is not None and isinstance(self.data, bytes) and not self.data.strip()


@dataclass(frozen=True)
class Reading:
    """How to read.

    Args:
        format: `text` (one document per file), `jsonl`, `parquet`, or `auto`: by the file's name, else text.
        field: where the text is in a JSON line or a Parquet row; dots go into objects, numbers into lists.
        max_record: bytes of a text file or of a JSON line with all its fields, characters of a Parquet value.
    """

    format: str = "auto"
    field: str = "text"
    max_record: int = MAX_RECORD

    def __post_init__(self) -> None:
        choice("auto", "text", "jsonl", "parquet")("format", self.format)
        integer(1, 2**30)("max_record", self.max_record)
        if not isinstance(self.field, str) or not all(self.field.split(".")) or len(self.field) > 1_000:
            raise bad_value("field", self.field, "a name, or names and numbers with dots between, as choices.0.text")


@dataclass(frozen=True)
class Span:
    """The lines of a JSON lines file that begin in these bytes; their numbers then count from the first of them."""

    start: int
    end: int


def format_of(source: str, format: str = "auto") -> tuple[str, str]:
    """How a file is written, by its name: the format and the compression, which may be empty.

    >>> format_of("outputs.jsonl.gz"), format_of("answer.md"), format_of("-", "jsonl")
    (('jsonl', '.gz'), ('text', ''), ('jsonl', ''))
    """
    name = source.lower()
    compression = next((end for end in OPENERS if end and name.endswith(end)), "")
    name = name.removesuffix(compression)
    by_name = next((kind for end, kind in FORMATS.items() if name.endswith(end)), "text")
    return (by_name if format == "auto" else format), compression


def read(
    source: str, reading: Reading, *, tick: Callable[[int], Any] | None = None, span: Span | None = None
) -> Iterator[Record | Problem]:
    """The documents of a file, or of standard input for `-`.

    Args:
        tick: called with the number of bytes read from the file since the last call.
        span: read these lines only, blank ones too, so that they can be counted.
    """
    kind, compression = format_of(source, reading.format)
    records = {"text": _text, "jsonl": _lines, "parquet": _rows}[kind]
    last: Record | Problem | None = None
    try:
        with _opened(source, compression, tick) as stream:
            for record in records(stream, source, reading, span):
                if span is not None or isinstance(record, Problem) or not record.blank:
                    last = record
                    yield record
    except MemoryError:
        yield Problem(source, None, "needs more memory than there is.")
    except READ_ERRORS as error:
        yield Problem(source, _after(last), f"cannot be read{' on' if last else ''}: {_reason(error)}.")
    else:
        if last is None and span is None:
            yield Problem(source, None, "holds no documents." if kind != "text" else "is empty.")


def _after(last: Record | Problem | None) -> int | None:
    return last.line + 1 if last is not None and last.line is not None else None


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split())[:200] or type(error).__name__


class _Counted(io.RawIOBase):
    """A file that says how much of it was read."""

    def __init__(self, file: IO[bytes], tick: Callable[[int], Any]) -> None:
        self._file, self._tick = file, tick

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._file.seekable()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: Any) -> int:
        count = self._file.readinto(buffer)  # type: ignore[attr-defined]
        self._tick(count or 0)
        return count


@contextmanager
def _opened(source: str, compression: str, tick: Callable[[int], Any] | None) -> Iterator[IO[bytes]]:
    with (
        open(sys.stdin.fileno() if source == STDIN else source, "rb", 0, closefd=source != STDIN) as file,
        io.BufferedReader(_Counted(file, tick or (lambda _: None)), 2**18) as counted,
        OPENERS[compression](counted) as stream,
    ):
        yield stream


def _zstd(stream: IO[bytes]) -> IO[bytes]:
    import pyarrow

    file = pyarrow.PythonFile(stream, mode="r")
    return io.BufferedReader(pyarrow.CompressedInputStream(file, "zstd"), 2**18)


OPENERS: dict[str, Callable[[IO[bytes]], Any]] = {
    "": nullcontext,
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": _zstd,
}


def _too_long(source: str, line: int | None, reading: Reading) -> Problem:
    return Problem(source, line, f"longer than {reading.max_record:,} bytes; raise --max-record to read it.")


def _text(stream: IO[bytes], source: str, reading: Reading, _: Span | None) -> Iterator[Record | Problem]:
    data = stream.read(reading.max_record + 1)
    if len(data) > reading.max_record:
        yield _too_long(source, None, reading)
    elif data:
        yield Record(source, None, data)


def _lines(stream: IO[bytes], source: str, reading: Reading, span: Span | None) -> Iterator[Record | Problem]:
    position = _go_to(stream, span.start) if span else 0
    number = 0
    while (span is None or position < span.end) and (line := stream.readline(reading.max_record + 1)):
        number += 1
        position += len(line)
        if len(line) > reading.max_record and not line.endswith(b"\n"):
            position += _skip_line(stream)
            yield _too_long(source, number, reading)
        else:
            yield Record(source, number, line)


def _go_to(stream: IO[bytes], start: int) -> int:
    """Go to the first line that begins at `start` or after it."""
    if not start:
        return 0
    stream.seek(start - 1)
    return start - 1 + _skip_line(stream)


def _skip_line(stream: IO[bytes]) -> int:
    """Go to the next line in small steps; returns how many bytes that was."""
    skipped = 0
    while part := stream.readline(2**20):
        skipped += len(part)
        if part.endswith(b"\n"):
            break
    return skipped


def _rows(stream: IO[bytes], source: str, reading: Reading, _: Span | None) -> Iterator[Record | Problem]:
    import pyarrow.parquet as parquet

    column = reading.field.split(".")[0]
    with parquet.ParquetFile(stream, pre_buffer=False) as file:
        if column not in file.schema_arrow.names:
            raise ValueError(f"it has no column {column!r}; its columns are {', '.join(file.schema_arrow.names)[:200]}")
        rows = _rows_at_once(file.metadata)
        number = 0
        for batch in file.iter_batches(batch_size=rows, columns=[column], use_threads=False):
            for row in batch.to_pylist():
                number += 1
                yield Record(source, number, row)


def _rows_at_once(metadata: Any) -> int:
    """So many rows that, at the mean size in the group with the largest, they stay small."""
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    mean = max((group.total_byte_size // max(1, group.num_rows) for group in groups), default=1)
    return max(1, min(1_024, BATCH_BYTES // max(1, mean)))


def decode(record: Record, reading: Reading) -> str | Problem:
    """The text of a document, or what is wrong with it."""
    found = parse(record)
    if isinstance(found, Problem):
        return found
    if record.line is None:
        return found.removesuffix("\r\n" if found.endswith("\r\n") else "\n")  # it ends the file, not the text
    text = dig(found, reading.field)
    if not isinstance(text, str):
        said = "there is no" if text is None else f"{type(text).__name__}, not text, in"
        hint = f"{said} field {reading.field!r} ({fields_of(found)}); choose one with --field."
        return Problem(record.source, record.line, hint)
    if len(text) > reading.max_record:
        return _too_long(record.source, record.line, reading)
    return text


def parse(record: Record) -> Any | Problem:
    """What a line of JSON or a row says, or the text of a whole file; or what is wrong with it."""
    if isinstance(record.data, dict):
        return record.data
    try:
        text = record.data.removeprefix(BOM).decode("utf-8")
    except UnicodeDecodeError as error:
        line = record.line or record.data.count(b"\n", 0, error.start) + 1
        return Problem(record.source, line, f"not UTF-8 (byte {record.data[error.start]:#04x}); convert the file.")
    if record.line is None:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        return Problem(record.source, record.line, f"no JSON: {_reason(error)}.")


def fields_of(found: Any) -> str:
    """The names of an object's fields, for a message."""
    return f"its fields: {', '.join(map(str, found))[:100]}" if isinstance(found, dict) else "it is no object"


def dig(found: Any, field: str) -> Any:
    """What is at a path such as `choices.0.message.content`; `None` if there is nothing."""
    for name in field.split("."):
        if isinstance(found, dict):
            found = found.get(name)
        elif isinstance(found, list) and name.lstrip("-").isdecimal() and -len(found) <= int(name) < len(found):
            found = found[int(name)]
        else:
            return None
    return found
