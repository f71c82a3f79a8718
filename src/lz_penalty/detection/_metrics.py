"""Measures of repetition: n-grams, zlib, the LZSS code of the reference, and the longest tandem repeat."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lz_penalty._checks import MAX_TOKEN_ID, integer
from lz_penalty.detection._tandem import Items, Repetition, as_array, find_repetition
from lz_penalty.errors import bad_value
from lz_penalty.reference import Copy, Literal, codelength

__all__ = ["RepetitionReport", "distinct", "lzss_code", "repetition_report", "seq_rep"]

SIZES = (1, 2, 3, 4)  # of n-grams
LZSS_ITEMS = 1_000_000  # items at most that are coded for `lzss_rate`


@dataclass(frozen=True)
class RepetitionReport:
    """The result of `repetition_report`.

    Args:
        length: the number of items: characters, bytes or token ids.
        distinct: for n = 1 to 4, the share of different n-grams. The n-grams of a `str` are of words.
        seq_rep: for n = 1 to 4, the share of n-grams that occurred before: 1 - distinct.
        zlib_ratio: bytes before / bytes after zlib, Whisper's measure. A `str` is UTF-8, a token id has 4 bytes.
        lzss_rate: bits per item of the LZSS code with the reference's window and buffer (`lz_penalty.reference`). The
            items of a `str` are its UTF-8 bytes. Only the first million items are coded.
        tandem: the longest run of adjacent copies that `find_repetition` finds with its default thresholds, or `None`.
    """

    length: int
    distinct: dict[int, float]
    seq_rep: dict[int, float]
    zlib_ratio: float
    lzss_rate: float
    tandem: Repetition | None

    def to_dict(self) -> dict[str, Any]:
        """Return the report as data for JSON, with one key per n-gram measure: `distinct_4`, `seq_rep_4`."""
        tandem = self.tandem and asdict(self.tandem)
        if tandem and isinstance(tandem["unit"], bytes):
            tandem["unit"] = tandem["unit"].decode("utf-8", "backslashreplace")
        return {
            "length": self.length,
            **{f"distinct_{n}": share for n, share in self.distinct.items()},
            **{f"seq_rep_{n}": share for n, share in self.seq_rep.items()},
            "zlib_ratio": self.zlib_ratio,
            "lzss_rate": self.lzss_rate,
            "tandem": tandem,
        }


def repetition_report(text_or_tokens: Items, *, vocab_size: int | None = None) -> RepetitionReport:
    """Measure the repetition in a `str`, `bytes` or token ids.

    Args:
        text_or_tokens: the sequence; see `RepetitionReport` for the units of each measure.
        vocab_size: the alphabet of token ids, for `lzss_rate`; by default the largest id + 1. Pass it to make the rates
            of several texts comparable.

    >>> report = repetition_report("very " * 40)
    >>> report.length, report.seq_rep[1], report.tandem.copies, report.zlib_ratio > 10, report.lzss_rate < 1
    (200, 0.975, 40.0, True, True)
    """
    items = as_array(text_or_tokens)
    words: Sequence[Any]
    coded: str | bytes
    alphabet = 256
    if isinstance(text_or_tokens, str):
        coded = raw = text_or_tokens.encode("utf-8", "surrogatepass")
        words = text_or_tokens.split()
    elif isinstance(text_or_tokens, bytes):
        words = coded = raw = text_or_tokens
    else:
        words = items.tolist()
        coded = _as_text(items[:LZSS_ITEMS])
        raw = items.astype("<i4").tobytes()
        alphabet = _alphabet(words, vocab_size)
    shares = {n: distinct(words, n) for n in SIZES}
    coded = coded[:LZSS_ITEMS]
    return RepetitionReport(
        length=len(items),
        distinct=shares,
        seq_rep={n: 1 - share for n, share in shares.items()},
        zlib_ratio=len(raw) / len(zlib.compress(raw)),
        lzss_rate=codelength(lzss_code(coded), alphabet) / len(coded) if coded else 0.0,
        tandem=find_repetition(text_or_tokens),
    )


def distinct(tokens: Sequence[Any], n: int) -> float:
    """Return the share of different n-grams; 1 for a sequence that is too short to have one.

    >>> distinct([1, 2, 1, 2, 1, 2], 2)
    0.4
    """
    grams = len(tokens) - n + 1
    return len(set(zip(*(tokens[i:] for i in range(n))))) / grams if grams > 0 else 1.0


def seq_rep(tokens: Sequence[Any], n: int) -> float:
    """Return the share of n-grams that occurred before: 1 - distinct.

    >>> seq_rep([1, 2, 1, 2, 1, 2], 2)
    0.6
    """
    return 1 - distinct(tokens, n)


def lzss_code(sequence: str | bytes, *, window_size: int = 512, buffer_size: int = 32) -> list[Copy | Literal]:
    """Return `reference.compress` of the code points or bytes, about a hundred times faster with `rfind`.

    If the window contains a prefix of the remaining items, it contains all shorter ones: bisection finds the longest.

    >>> lzss_code("abcabcabc")
    [Literal(token=97), Literal(token=98), Literal(token=99), Copy(length=3, distance=3), Copy(length=3, distance=3)]
    """
    code: list[Copy | Literal] = []
    i = 0
    while i < len(sequence):
        low = max(0, i - window_size)
        length, start, beyond = 0, 0, min(buffer_size, len(sequence) - i, i - low) + 1
        while length + 1 < beyond:
            middle = (length + beyond) // 2
            found = sequence.rfind(sequence[i : i + middle], low, i)  # type: ignore[arg-type]
            if found >= 0:
                length, start = middle, found
            else:
                beyond = middle
        item = sequence[i]
        code.append(Copy(length, i - start) if length else Literal(ord(item) if isinstance(item, str) else item))
        i += max(1, length)
    return code


def _alphabet(tokens: Sequence[int], vocab_size: int | None) -> int:
    smallest, largest = min(tokens, default=0), max(tokens, default=0)
    for token in (smallest, largest):
        if not 0 <= token <= MAX_TOKEN_ID:
            raise bad_value("token", token, f"an integer from 0 to {MAX_TOKEN_ID}")
    return integer(largest + 1, MAX_TOKEN_ID + 1)("vocab_size", largest + 1 if vocab_size is None else vocab_size)


def _as_text(items: np.ndarray) -> str:
    """Return a text with one character for each different token id, so that `rfind` can search it."""
    names = np.unique(items, return_inverse=True)[1]
    return names.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")
