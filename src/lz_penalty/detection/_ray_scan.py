"""Run a scan on a Ray cluster with Ray Data, which distributes files and pieces of large JSON lines files.

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
from lz_penalty.detection._records import STDIN, Problem, read
from lz_penalty.detection._verdict import Verdict
from lz_penalty.detection.scan import Document, Scan, examine, paths
from lz_penalty.errors import LZPenaltyError

__all__ = ["scan_ray"]

PIECE_BYTES = 64 * 2**20
MAX_TASKS = 10_000


@dataclass(frozen=True)
class Piece:
    """The lines of a file that begin in a range of its bytes; the whole file if `start` is -1."""

    source: str
    start: int
    size: int


def scan_ray(
    sources: Iterable[str | os.PathLike[str]],
    settings: Scan,
    *,
    address: str | None = None,
    tick: Callable[[int], Any] | None = None,
    piece_bytes: int = PIECE_BYTES,
) -> Iterator[Document | Problem]:
    """Yield the results of `lz_penalty.detection.scan.scan`, in the same order, computed on a Ray cluster.

    Args:
        sources: paths; standard input is not possible.
        settings: what to look for.
        address: the address of a running cluster for `ray.init`; by default RAY_ADDRESS. Without it, a cluster is
            started on this machine and stopped at the end.
        tick: called with the number of bytes of each finished piece.
        piece_bytes: a larger JSON lines file is split into pieces of this size.
    """
    integer(1, 2**40)("piece_bytes", piece_bytes)
    names = list(paths(sources))
    if STDIN in names:
        raise LZPenaltyError("standard input cannot be read on a Ray cluster; give files.")
    pieces = [piece for source in names for piece in _pieces(source, settings, piece_bytes)]
    return _results(pieces, settings, address, tick) if pieces else iter(())


def _pieces(source: str, settings: Scan, piece_bytes: int) -> list[Piece]:
    """Split a large uncompressed JSON lines file into pieces; any other file is one piece."""
    try:
        size = os.path.getsize(source)
    except OSError:  # the reader reports the problem
        size = 0
    if size <= piece_bytes or settings.reading.format_of(source) != ("jsonl", ""):
        return [Piece(source, -1, size)]
    return [Piece(source, start, min(piece_bytes, size - start)) for start in range(0, size, piece_bytes)]


def _results(
    pieces: list[Piece], settings: Scan, address: str | None, tick: Callable[[int], Any] | None
) -> Iterator[Document | Problem]:
    import ray

    ours = not ray.is_initialized()
    if ours:
        _connect(address)
    try:
        yield from _ordered(_rows(pieces, settings), pieces, tick)
    finally:
        if ours:
            ray.shutdown()


def _connect(address: str | None) -> None:
    import ray

    address = address or os.environ.get("RAY_ADDRESS")
    _check_reachable(address)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if not address:
        options["include_dashboard"] = False
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray.init(address, **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise LZPenaltyError(
            f"Ray address {address!r}: cannot be used ({' '.join(str(error).split())[:200]})."
        ) from None


def _check_reachable(address: str | None) -> None:
    """Raise if nothing listens at this address: Ray itself would wait for many minutes."""
    host, colon, port = (address or "").split("://")[-1].rpartition(":")
    if not colon:
        return  # "auto", "local", or none
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, ValueError, OverflowError) as error:
        raise LZPenaltyError(
            f"Ray address {address!r}: cannot be reached ({error}); give HOST:PORT of the cluster's head."
        ) from None


def _rows(pieces: list[Piece], settings: Scan) -> Iterator[dict[str, Any]]:
    """Yield the cluster's results of the pieces, in their order."""
    import ray.data

    items = [{"path": os.path.abspath(one.source), "start": one.start, "size": one.size} for one in pieces]
    data = ray.data.from_items(items, override_num_blocks=min(len(items), MAX_TASKS))
    results = data.flat_map(lambda item: _examine(item["path"], item["start"], item["size"], settings))
    results.context.execution_options.preserve_order = True
    results.context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    return (json.loads(row["result"]) for row in results.iter_rows())


def _examine(path: str, start: int, size: int, settings: Scan) -> Iterator[dict[str, str]]:
    """Yield the results of one piece and then its number of lines, each as JSON. Runs on the cluster."""
    line = 0
    for record in read(path, settings.reading, span=None if start < 0 else range(start, start + size)):
        line = record.line or 0
        if isinstance(record, Problem) or not record.blank:
            yield {"result": json.dumps(asdict(examine(record, settings)))}
    yield {"result": json.dumps({"lines": line})}


def _ordered(
    rows: Iterator[dict[str, Any]], pieces: list[Piece], tick: Callable[[int], Any] | None
) -> Iterator[Document | Problem]:
    """Yield the results with the given file names and with lines counted from the beginning of each file."""
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
        same_file = done < len(pieces) and pieces[done].start > 0
        before = before + row["lines"] if same_file else 0


def _result(row: dict[str, Any]) -> Document | Problem:
    if "message" in row:
        return Problem(**row)
    missed = row["missed"] and tuple(row["missed"])
    return Document(**row | {"verdicts": tuple(Verdict(**one) for one in row["verdicts"]), "missed": missed})
