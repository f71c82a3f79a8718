"""The texts of a Parquet file, row by row, in bounded memory. Needs pyarrow.

A few kilobytes of Parquet can stand for gigabytes: equal values are stored once, and pages are compressed. What a file says
about itself in its footer may be wrong. So the headers of the pages are read first: pyarrow allocates what they say. They
tell how many rows can be decoded at once within a limit, and where that is none, the file is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO, Any, NamedTuple

from lz_penalty.detection.parquet_headers import Chunk, column_chunks, page_headers

__all__ = ["column_texts", "list_index"]

ROWS_AT_ONCE = 64
MOST_PAGES = 1_000_000  # of a column in a row group
VALUE_BYTES = 16  # of a value beside its content: levels, offsets, an index
BY_DICTIONARY, BY_PREFIX = (2, 8), (7,)  # encodings in which few bytes stand for long values


class _Page(NamedTuple):
    """What a page can be decoded to.

    Attributes:
        rows: those that begin in it; `None` if its header does not say.
        values: of the column, nulls too.
        size: bytes without compression.
        longest: bytes of the longest value, where values are not simply the page's bytes.
    """

    rows: int | None
    values: int
    size: int
    longest: int

    def decoded(self, values: int) -> int:
        """Bytes that so many of its values take at most."""
        return self.size + min(values, self.values) * (VALUE_BYTES + self.longest)


def column_texts(stream: IO[bytes], field: str, most: int) -> Iterator[memoryview | str | None]:
    """The texts of a field, row by row, as bytes; the name of its type where it is no text; `None` where there is none.

    Args:
        stream: the file; must be seekable.
        field: a column, or a path into one: dots go into objects, numbers into lists.
        most: bytes that may be decoded at once.

    Raises:
        ValueError: there is no such column, or it cannot be decoded within the limit.
    """
    from pyarrow import ArrowException, StringScalar

    column, *names = field.split(".")
    try:
        for value in _values(stream, column, most):
            found = value if isinstance(value, StringScalar) and value.is_valid and not names else _inner(value, names)
            if isinstance(found, StringScalar):
                yield memoryview(found.as_buffer())  # not copied
            else:
                yield None if found is None else str(found.type)
    except ArrowException as error:  # some of them are no ValueError
        raise ValueError(str(error)) from None


def _values(stream: IO[bytes], column: str, most: int) -> Iterator[Any]:
    import pyarrow.parquet as parquet

    if not stream.seekable():
        raise ValueError("a Parquet file is read from its end, and this one is packed or piped; give the file itself")
    with parquet.ParquetFile(stream, pre_buffer=False) as file:
        schema, metadata, names = file.schema, file.metadata, file.schema_arrow.names
    if column not in names:
        raise ValueError(f"it has no column {column!r}; its columns are {', '.join(names)[:200]}")
    leaves = [index for index in range(len(schema)) if schema.column(index).path.split(".")[0] == column]
    in_lists = [index for index in leaves if schema.column(index).max_repetition_level]
    texts = [schema.column(index).path for index in in_lists if schema.column(index).physical_type == "BYTE_ARRAY"]
    # A row may have any number of values in lists: their indices are read, and each text of the dictionary once.
    with parquet.ParquetFile(stream, metadata=metadata, pre_buffer=False, read_dictionary=texts) as file:
        for group, chunks in enumerate(column_chunks(stream, leaves)):
            rows = ROWS_AT_ONCE
            for index, chunk in zip(leaves, chunks, strict=True):
                pages = _pages(stream, chunk, index in in_lists)
                rows = min(rows, _rows_at_once(pages, most // len(leaves), column, group))
            for batch in file.iter_batches(rows, row_groups=[group], columns=[column], use_threads=False):
                yield from batch.column(0)


def _inner(value: Any, names: Sequence[str]) -> Any:
    """What is at a path inside a scalar; `None` if there is nothing. No other part of it becomes an object of Python."""
    from pyarrow import ListScalar, MapScalar, StructScalar

    value = _plain(value)
    for name in names:
        if isinstance(value, StructScalar):
            value = _plain(value[name]) if name in value else None
        elif isinstance(value, ListScalar) and not isinstance(value, MapScalar):
            index = list_index(name, len(value))
            value = None if index is None else _plain(value[index])
        else:
            return None
    return value


def _plain(value: Any) -> Any:
    """The value that an index into a dictionary stands for; `None` for null."""
    from pyarrow import DictionaryScalar, ExtensionScalar

    while value.is_valid and isinstance(value, (DictionaryScalar, ExtensionScalar)):
        value = value.value
    return value if value.is_valid else None


def list_index(name: str, length: int) -> int | None:
    """The place in a list of this length that a part of a path names, as 0 or -1; `None` if there is none."""
    index = int(name) if name.removeprefix("-").isdecimal() else length
    return index if -length <= index < length else None


def _rows_at_once(pages: Sequence[_Page], most: int, column: str, group: int) -> int:
    """How many rows to decode at once: so few that they stay small, and an error if a single one takes too much."""
    rows = ROWS_AT_ONCE
    while rows > 1 and _worst(pages, rows) > most // 16:
        rows //= 2
    size = _worst(pages, 1) if rows == 1 else 0
    if size > most:
        raise ValueError(
            f"column {column!r} takes up to {size:,} bytes at once in row group {group + 1}, more than {most:,}; "
            f"raise --max-record, or write the file with smaller pages and row groups"
        )
    return rows


def _worst(pages: Sequence[_Page], rows: int) -> int:
    """Bytes that `rows` rows take at most."""
    if any(page.rows is None for page in pages):  # they may be anywhere
        return sum(page.decoded(page.values) for page in pages)
    sizes = [page.decoded(rows if page.rows == page.values else page.values) for page in pages]
    worst = total = inside = last = 0  # `inside`: rows of the pages after the first, the last one left out
    for first, size in enumerate(sizes):
        if last <= first:
            last, total, inside = first + 1, size, 0
        while last < len(pages) and 1 + inside < rows:
            total += sizes[last]
            inside += pages[last].rows or 0
            last += 1
        worst = max(worst, total)
        total -= size
        inside -= (pages[first + 1].rows or 0) if first + 1 < last else 0
    return worst


def _pages(stream: IO[bytes], chunk: Chunk, in_lists: bool) -> list[_Page]:
    """The pages of a column in a row group."""
    dictionary = 0
    pages: list[_Page] = []
    for header in page_headers(stream, chunk):
        if len(pages) == MOST_PAGES:
            raise ValueError(f"a column has more than {MOST_PAGES:,} pages in a row group")
        if header.dictionary:
            dictionary = max(dictionary, header.size)
            pages.append(_Page(0, 0, header.size, 0))
            continue
        rows = header.rows if in_lists else header.values
        longest = dictionary if header.encoding in BY_DICTIONARY and not in_lists else 0
        pages.append(_Page(rows, header.values, header.size, header.size if header.encoding in BY_PREFIX else longest))
    return pages
