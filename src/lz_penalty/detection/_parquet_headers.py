"""Find the pages of a Parquet file and read their headers, which pyarrow does not show.

Footer and headers are in Thrift's compact protocol. If pyarrow would read a number differently from this module, the file
is refused, because the numbers checked here must be those that pyarrow decodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any, NamedTuple

__all__ = ["Chunk", "column_chunks", "page_headers"]

MAGIC = b"PAR1"
HEADER_BYTES, MOST_HEADER_BYTES = 2**10, 2**24  # the second is also pyarrow's limit
MOST_NESTING = 16  # the format has six levels
MALFORMED = "the footer or the header of a page is malformed"
# Types of the protocol.
TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
BITS = {I16: 16, I32: 32, I64: 64}
DATA_PAGE, DICTIONARY_PAGE, DATA_PAGE_2 = 0, 2, 3


class Chunk(NamedTuple):
    """The bytes that contain the pages of a column in a row group, or one page; and their compression's number."""

    start: int
    end: int
    compression: int


class _Reader:
    """A sequential reader of the protocol."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yield number and type of each field of an object. The caller must read or skip its value before the next."""
        number = 0
        while first := self.byte():
            number = number + (first >> 4) if first >> 4 else self.integer(I16)
            if not -(2**15) <= number < 2**15:
                raise ValueError(MALFORMED)
            yield number, first & 15

    def integers(self, wanted: int, *small: int) -> dict[int, int]:
        """Return the integer fields of an object that have this type, or I32 if `small`. Like pyarrow, skip others."""
        found = {}
        for number, kind in self.fields():
            if kind == (I32 if number in small else wanted):
                found[number] = self.integer(kind)
            else:
                self.skip(kind)
        return found

    def items(self, expected: int) -> range:
        """Return the indices of a list, whose values must have this type."""
        first = self.byte()
        count = first >> 4 if first >> 4 < 15 else self.varint()
        if first & 15 != expected or count > len(self.data):
            raise ValueError(MALFORMED)
        return range(count)

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self.byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError(MALFORMED)

    def integer(self, kind: int) -> int:
        value = self.varint()
        if value >> BITS[kind]:
            raise ValueError(MALFORMED)
        return (value >> 1) ^ -(value & 1)

    def skip(self, kind: int, depth: int = 0, *, in_list: bool = False) -> None:
        if depth > MOST_NESTING:
            raise ValueError(MALFORMED)
        if kind in (TRUE, FALSE):
            self.at += in_list  # in an object, the type already gives the value
        elif kind in (BYTE, DOUBLE):
            self.at += 1 if kind == BYTE else 8
        elif kind in BITS:
            self.varint()
        elif kind == BINARY:
            length = self.varint()
            self.at += length
        elif kind in (LIST, SET):
            first = self.byte()
            for _ in range(first >> 4 if first >> 4 < 15 else self.varint()):
                self.skip(first & 15, depth + 1, in_list=True)
        elif kind == STRUCT:
            for _, inner in self.fields():
                self.skip(inner, depth + 1)
        else:
            raise ValueError(MALFORMED)
        if self.at > len(self.data):
            raise IndexError


def column_chunks(stream: IO[bytes], column: int) -> list[Chunk]:
    """Return, for each row group, the bytes with the pages of the column with this index."""
    stream.seek(-8, 2)
    end = stream.tell()
    length = int.from_bytes(stream.read(4), "little")
    if stream.read(4) != MAGIC or length > end:
        raise ValueError(MALFORMED)
    stream.seek(end - length)
    reader = _Reader(stream.read(length))
    chunks: list[Chunk] = []
    try:
        for number, kind in reader.fields():
            if (number, kind) == (4, LIST):
                chunks = [_group(reader, column) for _ in reader.items(STRUCT)]
            else:
                reader.skip(kind)
    except IndexError:
        raise ValueError(MALFORMED) from None
    return chunks


def _group(reader: _Reader, column: int) -> Chunk:
    found = None
    for number, kind in reader.fields():
        if (number, kind) == (1, LIST):
            found = None
            for index in reader.items(STRUCT):
                chunk = _chunk(reader)
                found = chunk if index == column else found
        else:
            reader.skip(kind)
    if found is None:
        raise ValueError(MALFORMED)
    return found


def _chunk(reader: _Reader) -> Chunk:
    metadata: dict[int, int] = {}
    for number, kind in reader.fields():
        if (number, kind) == (3, STRUCT):
            metadata |= reader.integers(I64, 4)  # as in pyarrow, a second one updates the first
        else:
            reader.skip(kind)
    start = _count(metadata, 9)
    if 0 < metadata.get(11, 0) < start:  # the dictionary page, by pyarrow's rule
        start = metadata[11]
    return Chunk(start, start + _count(metadata, 7) if _count(metadata, 5) else start, _count(metadata, 4))


def page_headers(stream: IO[bytes], chunk: Chunk) -> Iterator[tuple[int, int, int | None, Chunk]]:
    """Yield, for each page of a column: its values including nulls, bytes without compression, encoding, and content.

    The encoding is its number in the format; it is `None` for a dictionary, of whose values other pages contain indices.
    """
    place = chunk.start
    while place < chunk.end:
        fields, length = _header(stream, place)
        kind, size = _count(fields, (1,)), _count(fields, (2,))
        content = Chunk(place + length, place + length + _count(fields, (3,)), chunk.compression)
        place = content.end
        if kind == DICTIONARY_PAGE:
            yield 0, size, None, content
        elif kind == DATA_PAGE:
            yield _count(fields, (5, 1)), size, _count(fields, (5, 2)), content
        elif kind == DATA_PAGE_2:
            yield _count(fields, (8, 1)), size, _count(fields, (8, 4)), content


def _header(stream: IO[bytes], place: int) -> tuple[dict[tuple[int, ...], int], int]:
    """Return the integers in the header that begins here, by field numbers, and the header's length."""
    for length in (HEADER_BYTES, MOST_HEADER_BYTES):
        stream.seek(place)
        reader = _Reader(stream.read(length))
        found: dict[tuple[int, ...], int] = {}
        try:
            for number, kind in reader.fields():
                if kind == I32:
                    found[number,] = reader.integer(kind)
                elif kind == STRUCT:
                    found |= {(number, inner): value for inner, value in reader.integers(I32).items()}
                else:
                    reader.skip(kind)
        except IndexError:
            if len(reader.data) < length:
                break
        else:
            return found, reader.at
    raise ValueError(MALFORMED)


def _count(fields: dict[Any, int], number: Any) -> int:
    """Return a required field that must not be negative."""
    value = fields.get(number, -1)
    if value < 0:
        raise ValueError(MALFORMED)
    return value
