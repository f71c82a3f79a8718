"""The same scan on a Ray cluster, with Ray Data: files, and pieces of JSON lines files, are examined where there is room.

Files must be at the same path on every machine of the cluster. Needs `pip install 'lz-penalty[ray]'`.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from lz_penalty._checks import integer
from lz_penalty.detection._records import STDIN, Problem, Span, format_of, read
from lz_penalty.detection._verdict import Verdict
from lz_penalty.detection.scan import Document, Scan, examine
from lz_penalty.errors import LZPenaltyError

__all__ = ["scan_ray"]

PIECE_BYTES = 64 * 2**20
MAX_TASKS = 10_000


@dataclass(frozen=True)
class Piece:
    """A file, or the lines of it that begin in a span of bytes."""

    source: str
    span: Span | None
    size: int


def scan_ray(
    sources: Iterable[str],
    what: Scan,
    *,
    address: str | None = None,
    tick: Callable[[int], Any] | None = None,
    piece_bytes: int = PIECE_BYTES,
) -> Iterator[Document | Problem]:
    """What `lz_penalty.detection.scan.scan` gives, in the same order, examined on a Ray cluster.

    Args:
        sources: paths; standard input cannot be sent to a cluster.
        address: of a cluster that runs, as `ray.init` takes it; by default that of RAY_ADDRESS, else
            one is started on this machine and stopped at the end.
        tick: called with the bytes of each piece when it is done.
        piece_bytes: how large a JSON lines file may be before it is divided.
    """
    integer(1, 2**40)("piece_bytes", piece_bytes)
    sources = list(sources)
    if STDIN in sources:
        raise LZPenaltyError("standard input cannot be read on a Ray cluster; give files.")
    pieces = [piece for source in sources for piece in _pieces(source, what, piece_bytes)]
    return _results(pieces, what, address, tick) if pieces else iter(())


def _pieces(source: str, what: Scan, piece_bytes: int) -> list[Piece]:
    """What can be read alone: the whole file, if it is no plain JSON lines file or small."""
    try:
        size = os.path.getsize(source)
    except OSError:  # the reader names the problem
        size = 0
    if size <= piece_bytes or format_of(source, what.reading.format) != ("jsonl", ""):
        return [Piece(source, None, size)]
    starts = range(0, size, piece_bytes)
    return [
        Piece(source, Span(start, min(start + piece_bytes, size)), min(piece_bytes, size - start)) for start in starts
    ]


def _results(
    pieces: list[Piece], what: Scan, address: str | None, tick: Callable[[int], Any] | None
) -> Iterator[Document | Problem]:
    import ray

    ours = not ray.is_initialized()
    if ours:
        _connect(address)
    try:
        yield from _ordered(_rows(pieces, what), pieces, tick)
    finally:
        if ours:
            ray.shutdown()


def _connect(address: str | None) -> None:
    import ray

    address = address or os.environ.get("RAY_ADDRESS")
    _reach(address)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if not address:
        quiet["include_dashboard"] = False
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray.init(address, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise LZPenaltyError(
            f"Ray address {address!r}: cannot be used ({' '.join(str(error).split())[:200]})."
        ) from None


def _reach(address: str | None) -> None:
    """Refuse an address at which nothing listens: Ray itself would wait for many minutes."""
    host, colon, port = (address or "").split("://")[-1].rpartition(":")
    if not colon:
        return  # "auto", "local", or none
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, ValueError, OverflowError) as error:
        raise LZPenaltyError(
            f"Ray address {address!r}: cannot be reached ({error}); give HOST:PORT of its head."
        ) from None


def _rows(pieces: list[Piece], what: Scan) -> Iterator[dict[str, Any]]:
    """What the cluster says of the pieces, in their order; each row a line of JSON."""
    import ray.data

    items = [
        {"path": os.path.abspath(one.source), "start": one.span.start if one.span else -1, "size": one.size}
        for one in pieces
    ]
    data = ray.data.from_items(items, override_num_blocks=min(len(items), MAX_TASKS))
    results = data.flat_map(lambda item: _examine(item["path"], item["start"], item["size"], what))
    results.context.execution_options.preserve_order = True
    results.context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    return (json.loads(row["result"]) for row in results.iter_rows())


def _examine(path: str, start: int, size: int, what: Scan) -> Iterator[dict[str, str]]:
    """The results of one piece, and after them how many lines it has; runs on the cluster."""
    line = 0
    for record in read(path, what.reading, span=None if start < 0 else Span(start, start + size)):
        line = record.line or 0
        if isinstance(record, Problem) or not record.blank:
            yield {"result": json.dumps(asdict(examine(record, what)))}
    yield {"result": json.dumps({"lines": line})}


def _ordered(
    rows: Iterator[dict[str, Any]], pieces: list[Piece], tick: Callable[[int], Any] | None
) -> Iterator[Document | Problem]:
    """The results, with files as they were named and lines counted from their beginning."""
    done = before = 0
    for row in rows:
        if "lines" not in row:
            result = _result(row)
            line = None if result.line is None else result.line + before
            yield replace(result, source=pieces[done].source, line=line)
            continue
        if tick is not None:
            tick(pieces[done].size)
        done += 1
        same_file = done < len(pieces) and (span := pieces[done].span) is not None and span.start > 0
        before = before + row["lines"] if same_file else 0


def _result(row: dict[str, Any]) -> Document | Problem:
    if "message" in row:
        return Problem(**row)
    return Document(**row | {"verdicts": tuple(Verdict(**verdict) for verdict in row["verdicts"])})
