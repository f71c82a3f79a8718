"""Store the judge's answers on disk. The file contains a hash of each question and the answer, but no texts or keys."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from lz_penalty.detection._judge_prompt import RESPONSE_FORMAT, MalformedAnswerError, parse
from lz_penalty.errors import LZPenaltyError

__all__ = ["JudgeCache", "cache_key"]

SCHEMA = "CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, model TEXT NOT NULL, answer TEXT NOT NULL)"


def cache_key(model: str, messages: list[dict[str, str]]) -> str:
    """Return a hash of everything that determines the answer: the model, the prompt, and the text as it is sent."""
    return hashlib.sha256(json.dumps([model, messages, RESPONSE_FORMAT]).encode()).hexdigest()


class JudgeCache:
    """An SQLite file that threads and processes of one machine can share safely."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with self._open() as database:
            database.execute(SCHEMA)

    def get(self, key: str) -> tuple[bool, str] | None:
        """Return the stored verdict and reason, or `None`."""
        with self._open() as database:
            row = database.execute("SELECT answer FROM answers WHERE key = ?", (key,)).fetchone()
        try:
            return parse(row[0]) if row else None
        except MalformedAnswerError:  # somebody edited the file: ask again
            return None

    def put(self, key: str, model: str, loop: bool, reason: str) -> None:
        """Store an answer."""
        with self._open() as database:
            answer = json.dumps({"reason": reason, "loop": loop})
            database.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", (key, model, answer))

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self.path, timeout=30)) as database, database:
                yield database
        except sqlite3.Error as error:
            raise LZPenaltyError(
                f"judge cache {self.path}: cannot be used ({error}); give a new file in an existing folder."
            ) from None
