"""Read the texts of a Parquet file, row by row, in bounded memory. Needs pyarrow.

A few kilobytes of Parquet can contain gigabytes: equal values are stored once, and pages are compressed. The sizes in the
footer may be wrong. So only the column with the texts is decoded, and the headers of its pages are read first, because
pyarrow allocates the sizes in them. They show how many rows can be decoded at once within the limit. If not even one row
can, the file is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import IO, Any, NamedTuple

from lz_penalty.detection._parquet_headers import Chunk, column_chunks, page_headers

__all__ = ["column_texts", "list_index"]

ROWS_AT_ONCE = 64
MOST_PAGES = 1_000_000  # of a column in a row group
LARGE_DICTIONARY = 2**24  # bytes; writers limit them to 1 or 2 MB
COMPRESSIONS = {0: "", 1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
VALUE_BYTES = 16  # of a value in addition to its content: levels, offsets, an index
BUFFER = 2**16  # of a compressed column; without it, pyarrow reads a whole row group
IN_LISTS = 2  # times the limit, for a whole row group: ordinary files need far less, as they are decoded row by row
BY_DICTIONARY, BY_PREFIX = (2, 8), (7,)  # encodings in which few bytes can give long values
NO_INDICES = (6, 7)  # encodings that pyarrow cannot decode to indices


class _Page(NamedTuple):
    """The sizes that determine how much memory a decoded page takes.

    Attributes:
        values: the number of values, including nulls.
        size: bytes without compression.
        longest: bytes of the longest value if values can be longer than their bytes in the page, else 0.
        encoding: its number in the format; `None` for a dictionary page.
    """

    values: int
    size: int
    longest: int
    encoding: int | None = None

    def decoded(self, values: int) -> int:
        """Return how many bytes this number of its values takes at most."""
        return self.size + min(values, self.values) * (VALUE_BYTES + self.longest)


def column_texts(stream: IO[bytes], field: str, most: int) -> Iterator[memoryview | str | None]:
    """Yield a field's text of each row, as bytes; the name of its type if it is not text; `None` if it is missing.

    Args:
        stream: the file; must be seekable.
        field: a column, or a path in it: names of fields and indices of lists, with dots.
        most: how many bytes may be decoded at once.

    Raises:
        ValueError: the column does not exist, or it cannot be decoded within the limit.
    """
    import pyarrow.parquet as parquet
    from pyarrow import ArrowException

    if not stream.seekable():
        raise ValueError("a Parquet file must be seekable, but this one is compressed or piped; give the file itself")
    column, *names = field.split(".")
    try:
        with parquet.ParquetFile(stream, pre_buffer=False) as file:
            leaf, kind = _leaf(file, column, names)
            if leaf is None:
                yield from repeat(kind, file.metadata.num_rows)
                return
            metadata, target = file.metadata, file.schema.column(leaf)
        in_lists = target.max_repetition_level > 0
        for group, chunk in enumerate(column_chunks(stream, leaf)):
            rows, by_index = _how(_pages(stream, chunk), in_lists, most, column, group)
            options = {"metadata": metadata, "pre_buffer": False, "buffer_size": BUFFER}
            with parquet.ParquetFile(stream, read_dictionary=[target.path] if by_index else None, **options) as file:
                for batch in file.iter_batches(rows, row_groups=[group], columns=[target.path], use_threads=False):
                    for value in batch.column(0):
                        found = _inner(value, names)
                        yield None if found is None else memoryview(found.as_buffer())  # not copied
    except ArrowException as error:  # not all of them are a ValueError
        raise ValueError(str(error)) from None


def _leaf(file: Any, column: str, names: Sequence[str]) -> tuple[int | None, str | None]:
    """Return the index of the Parquet column with the texts; or `None` and the type of the field, if it exists.

    Only this column is decoded: other types may have values of any size, which take memory even if they are null.
    """
    from pyarrow import types

    lists = types.is_list, types.is_large_list, types.is_list_view, types.is_large_list_view
    fields, paths = list(file.schema_arrow), [file.schema.column(index).path for index in range(len(file.schema))]
    places = [index for index, one in enumerate(fields) if one.name == column]
    if not places:
        raise ValueError(
            f"the file has no column {column!r}; its columns are {', '.join(file.schema_arrow.names)[:200]}"
        )
    kind, leaf = fields[places[0]].type, sum(_leaves(one.type) for one in fields[: places[0]])
    for name in names:
        if types.is_fixed_size_list(kind):
            raise ValueError(
                f"column {column!r} has lists of a fixed size, which are not supported; write it with plain lists"
            )
        if types.is_struct(kind) and kind.get_field_index(name) >= 0:
            index = kind.get_field_index(name)
            leaf += sum(_leaves(kind.field(before).type) for before in range(index))
            kind = kind.field(index).type
        elif any(is_list(kind) for is_list in lists) and list_index(name, 2**31) is not None:
            kind = kind.value_type
        else:
            return None, None
    content = kind.storage_type if hasattr(kind, "storage_type") else kind
    content = content.value_type if types.is_dictionary(content) else content
    if not (types.is_string(content) or types.is_large_string(content) or types.is_string_view(content)):
        return None, str(kind)
    if len(places) > 1 or sum(map(_leaves, (one.type for one in fields))) != len(paths) or paths.count(paths[leaf]) > 1:
        raise ValueError(f"the file has several columns {column!r}")
    return (leaf, None) if file.schema.column(leaf).physical_type == "BYTE_ARRAY" else (None, str(kind))


def _leaves(kind: Any) -> int:
    """Return how many Parquet columns a type has."""
    kind = getattr(kind, "storage_type", kind)
    return sum(_leaves(kind.field(index).type) for index in range(kind.num_fields)) or 1


def _inner(value: Any, names: Sequence[str]) -> Any:
    """Return the text at a path inside a scalar, or `None`. No other part of the scalar becomes a Python object."""
    from pyarrow import StructScalar

    value = _plain(value)
    for name in names:
        if value is None:
            return None
        if isinstance(value, StructScalar):
            value = _plain(value[name])
        else:
            index = list_index(name, len(value))
            value = None if index is None else _plain(value[index])
    return value


def _plain(value: Any) -> Any:
    """Return a value, looked up if it is an index into a dictionary; `None` for null."""
    from pyarrow import DictionaryScalar, ExtensionScalar

    while value.is_valid and isinstance(value, (DictionaryScalar, ExtensionScalar)):
        value = value.value
    return value if value.is_valid else None


def list_index(name: str, length: int) -> int | None:
    """Return the index that a part of a path, such as 0 or -1, names in a list of this length, or `None`."""
    index = int(name) if name.removeprefix("-").isdecimal() else length
    return index if -length <= index < length else None


def _how(pages: Sequence[_Page], in_lists: bool, most: int, column: str, group: int) -> tuple[int, bool]:
    """Return how many rows to decode at once, and whether to decode to dictionary indices; raise if both need too much."""
    if in_lists:  # a row may have any number of values, and the file may give a wrong one: count the whole row group
        size, most = sum(page.decoded(page.values) for page in pages), IN_LISTS * most
        if size <= most:
            return ROWS_AT_ONCE, False
        # With indices, each text is stored once. pyarrow then keeps several copies of all texts of the row group.
        kept = sum(page._replace(longest=0).decoded(page.values) for page in pages)
        if kept <= most // 4 and not any(page.encoding in NO_INDICES for page in pages):
            return ROWS_AT_ONCE, True
    else:
        rows = ROWS_AT_ONCE
        while rows > 1 and _worst(pages, rows) > most // 16:
            rows //= 2
        size = _worst(pages, 1) if rows == 1 else 0
        if size <= most:
            return rows, False
    raise ValueError(
        f"column {column!r} needs up to {size:,} bytes at once in row group {group + 1}, more than {most:,}; "
        f"raise --max-record, or write the file with smaller pages and row groups"
    )


def _worst(pages: Sequence[_Page], rows: int) -> int:
    """Return how many bytes `rows` rows take at most if each has one value."""
    sizes = [page.decoded(rows) for page in pages]
    worst = total = inside = last = 0  # `inside`: rows of the pages between the first and the last
    for first, size in enumerate(sizes):
        if last <= first:
            last, total, inside = first + 1, size, 0
        while last < len(pages) and 1 + inside < rows:
            total += sizes[last]
            inside += pages[last].values
            last += 1
        worst = max(worst, total)
        total -= size
        inside -= pages[first + 1].values if first + 1 < last else 0
    return worst


def _pages(stream: IO[bytes], chunk: Chunk) -> list[_Page]:
    """Return the pages of a column in a row group."""
    dictionary = 0
    pages: list[_Page] = []
    for values, size, encoding, content in page_headers(stream, chunk):
        if len(pages) == MOST_PAGES:
            raise ValueError(f"a column has more than {MOST_PAGES:,} pages in a row group")
        if encoding is None:
            dictionary = max(dictionary, _longest(stream, content, size))
        longest = dictionary if encoding in BY_DICTIONARY else size if encoding in BY_PREFIX else 0
        pages.append(_Page(values, size, longest, encoding))
    return pages


def _longest(stream: IO[bytes], content: Chunk, size: int) -> int:
    """Return the bytes of the longest text in a dictionary, or of the whole dictionary if it is too large to read."""
    from pyarrow import Codec

    start, end, compression = content
    if max(size, end - start) > LARGE_DICTIONARY or compression not in COMPRESSIONS:
        return size
    stream.seek(start)
    data = stream.read(end - start)
    if compression:
        data = Codec(COMPRESSIONS[compression]).decompress(data, size, asbytes=True)
    longest = at = 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "little")
        longest, at = max(longest, length), at + 4 + length
    return min(longest, size)
