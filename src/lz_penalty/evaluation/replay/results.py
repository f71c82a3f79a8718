"""Store answers in a file, one JSON line per request and written at once, so that an interrupted replay can continue."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from lz_penalty._files import replacing
from lz_penalty.errors import LZPenaltyError, show
from lz_penalty.evaluation.replay.log import Stored
from lz_penalty.evaluation.replay.sending import Answer

__all__ = ["Results"]


class Results:
    """Answers on disk, found by the line and key of their request. Only positions in the file are kept in memory.

    The first line contains the settings that made all answers. A file with other settings is refused.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path = path
        self._settings = {"settings": settings}
        self._places: dict[tuple[int, str], int] = {}
        try:
            self._file: IO[bytes] = open(path, "a+b")  # noqa: SIM115  closed by `close`
        except OSError as error:
            raise LZPenaltyError(f"--out {path}: cannot be written ({error.strerror or error}).") from None
        self._index()

    def _index(self) -> None:
        """Find the answers in the file. A last line that was cut off is ignored, and gets a line end."""
        self._file.seek(0)
        first = self._file.readline()
        if not first:
            self._append(self._settings)
            return
        if _parsed(first) != self._settings:
            made = (_parsed(first) or {}).get("settings")
            said = f"was made with other settings ({show(made, 300)})" if made else "is no file of a replay"
            self._file.close()
            raise LZPenaltyError(f"--out {self.path}: {said}; choose another.")
        place = self._file.tell()
        line = first
        for line in iter(self._file.readline, b""):
            row = _parsed(line)
            if row and "key" in row and "error" not in row:
                self._places[row["line"], row["key"]] = place
            place += len(line)
        if not line.endswith(b"\n"):
            self._file.write(b"\n")

    def __contains__(self, stored: Stored) -> bool:
        return (stored.line, stored.key) in self._places

    def add(self, stored: Stored, without: Answer, with_penalty: Answer) -> None:
        """Store both answers to a request."""
        row = {"line": stored.line, "key": stored.key, "without": asdict(without), "with": asdict(with_penalty)}
        self._places[stored.line, stored.key] = self._append(row)

    def answers(self, stored: Stored) -> tuple[Answer, Answer]:
        """Return both answers to a request in the file."""
        self._file.seek(self._places[stored.line, stored.key])
        row = json.loads(self._file.readline())
        return _answer(row["without"]), _answer(row["with"])

    def _append(self, row: dict[str, Any]) -> int:
        try:
            place = self._file.seek(0, 2)
            self._file.write(json.dumps(row).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise LZPenaltyError(f"--out {self.path}: cannot be written ({error.strerror or error}).") from None
        return place

    @contextmanager
    def replaced(self) -> Iterator[Any]:
        """Yield a function that writes rows to a new file, which replaces this one at the end."""
        with replacing(self.path) as write:
            write(json.dumps(self._settings) + "\n")
            yield lambda row: write(json.dumps(row) + "\n")

    def close(self) -> None:
        """Close the file. Errors of writing were raised when an answer was added."""
        with suppress(OSError):
            self._file.close()


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _answer(row: dict[str, Any]) -> Answer:
    return Answer(**{name: row[name] for name in ("text", "reasoning", "finish", "tokens")})
