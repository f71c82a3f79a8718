"""What a tokenizer's ids write, as bytes, and which of them begin or end a turn."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from lz_penalty.errors import LZPenaltyError
from lz_penalty.policy._places import Pair

__all__ = ["text_tokenizer", "turn_ids", "vocabulary_of"]

MAX_VOCABULARY = 2**22
_BYTE = re.compile("<0x([0-9A-F]{2})>")
_INSIDE = re.compile("call|tool.?sep|function|arg|param|think|thought|reason|unk", re.I)  # special, but within a turn


def text_tokenizer(tokenizer: Any) -> Any:
    """The tokenizer of texts: the given one, or that of a processor for images or sound.

    A tokenizer may itself wrap one of another kind, which does not count.
    """
    return tokenizer if hasattr(tokenizer, "all_special_ids") else getattr(tokenizer, "tokenizer", tokenizer)


def vocabulary_of(tokenizer: Any) -> list[bytes]:
    """The bytes of every id, empty where there is no token.

    Byte-level vocabularies (a printable character for every byte) and those of SentencePiece (`▁` for a space, `<0x0A>`
    for a byte) are told apart by what is in them; added tokens stand for themselves.

    Args:
        tokenizer: a Hugging Face tokenizer, or a processor that has one.
    """
    inner = text_tokenizer(tokenizer)
    if not hasattr(inner, "get_vocab"):
        raise LZPenaltyError(
            f"tokenizer of type {type(inner).__name__}: has no get_vocab(). Give a Hugging Face tokenizer, or make "
            "Sections from the bytes of every token yourself."
        )
    known, added = inner.get_vocab(), inner.get_added_vocab()
    size = max((*known.values(), *added.values()), default=-1) + 1
    if size > MAX_VOCABULARY:
        raise LZPenaltyError(f"the tokenizer has ids up to {size - 1}: must be below {MAX_VOCABULARY}.")
    texts = [b""] * size
    write = _byte_level if "Ċ" in known or "Ġ" in known else _sentence_piece
    for token, token_id in known.items():
        texts[token_id] = write(token)
    for token, token_id in added.items():
        texts[token_id] = token.encode()
    return texts


def turn_ids(tokenizer: Any, pairs: Iterable[Pair]) -> tuple[int, ...]:
    """The special tokens that begin or end a turn: all but those in markers and those that belong inside a turn."""
    inner = text_tokenizer(tokenizer)
    markers = "\n".join(f"{pair.open}\n{pair.close or ''}" for pair in pairs)
    special = dict(zip(inner.all_special_ids, inner.all_special_tokens, strict=True))
    special |= {i: str(token) for i, token in getattr(inner, "added_tokens_decoder", {}).items() if token.special}
    return tuple(i for i, token in special.items() if token not in markers and not _INSIDE.search(token))


@lru_cache(maxsize=1)
def _characters() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for: printable Latin-1, then the rest from 256 on."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + i): byte for i, byte in enumerate(hidden)}


def _byte_level(token: str) -> bytes:
    characters = _characters()
    try:
        return bytes([characters[one] for one in token])
    except KeyError:  # a word that was added without being listed as such
        return token.encode()


def _sentence_piece(token: str) -> bytes:
    byte = _BYTE.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()
