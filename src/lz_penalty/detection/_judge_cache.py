"""Answers of the judge on disk, by content. Holds a hash of what was asked and the answer: no texts, no keys."""

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
    """A hash of all that decides the answer: the model, the wording of the question, and the text as it is sent."""
    return hashlib.sha256(json.dumps([model, messages, RESPONSE_FORMAT]).encode()).hexdigest()


class JudgeCache:
    """An SQLite file, safe to share between threads and processes of one machine."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with self._open() as database:
            database.execute(SCHEMA)

    def get(self, key: str) -> tuple[bool, str] | None:
        """Verdict and reason, if this was answered before."""
        with self._open() as database:
            row = database.execute("SELECT answer FROM answers WHERE key = ?", (key,)).fetchone()
        try:
            return parse(row[0]) if row else None
        except MalformedAnswerError:  # somebody edited the file: ask again
            return None

    def put(self, key: str, model: str, loop: bool, reason: str) -> None:
        """Remember an answer."""
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
                f"judge cache {self.path}: cannot be used ({error}); give a file of its own in a folder that exists."
            ) from None
