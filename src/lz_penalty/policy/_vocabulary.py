"""The bytes of a tokenizer's ids, and the ids that begin or end a turn."""

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
_INSIDE = re.compile("call|tool.?sep|function|arg|param|think|thought|reason|unk", re.I)  # special, but inside a turn


def text_tokenizer(tokenizer: Any) -> Any:
    """Return the text tokenizer: the given one, or that of a processor for images or sound.

    Some tokenizers have an attribute `tokenizer` of another kind, which is not used.
    """
    return tokenizer if hasattr(tokenizer, "all_special_ids") else getattr(tokenizer, "tokenizer", tokenizer)


def vocabulary_of(tokenizer: Any) -> list[bytes]:
    """Return the bytes of every id of a tokenizer or processor from Hugging Face; empty for an id without a token.

    The vocabulary is either byte-level (a printable character for every byte) or SentencePiece (`▁` for a space, `<0x0A>`
    for a byte). Most of its tokens that begin with a space or a line end show which: a SentencePiece vocabulary may also
    contain the letters `Ġ` and `Ċ`, which are a space and a line end on the byte level. Added tokens are literal text.
    """
    inner = text_tokenizer(tokenizer)
    if not hasattr(inner, "get_vocab"):
        raise LZPenaltyError(
            f"tokenizer of type {type(inner).__name__}: has no get_vocab(). Give a Hugging Face tokenizer, or create "
            "Sections from the bytes of every token."
        )
    known, added = inner.get_vocab(), inner.get_added_vocab()
    size = max((*known.values(), *added.values()), default=-1) + 1
    if size > MAX_VOCABULARY:
        raise LZPenaltyError(f"the tokenizer has ids up to {size - 1}: must be below {MAX_VOCABULARY}.")
    texts = [b""] * size
    own = known.keys() - added.keys()
    byte_level = sum(token.startswith(("Ġ", "Ċ")) for token in own)
    sentence_piece = sum(token.startswith("▁") or _BYTE.fullmatch(token) is not None for token in own)
    write = _byte_level if byte_level > sentence_piece else _sentence_piece
    for token, token_id in known.items():
        texts[token_id] = write(token)
    for token, token_id in added.items():
        texts[token_id] = token.encode()
    return texts


def turn_ids(tokenizer: Any, pairs: Iterable[Pair]) -> tuple[int, ...]:
    """Return the special tokens that begin or end a turn: all except those in markers and those used inside a turn."""
    inner = text_tokenizer(tokenizer)
    markers = "\n".join(f"{pair.open}\n{pair.close or ''}" for pair in pairs)
    special = dict(zip(inner.all_special_ids, inner.all_special_tokens, strict=True))
    special |= {i: str(token) for i, token in getattr(inner, "added_tokens_decoder", {}).items() if token.special}
    return tuple(i for i, token in special.items() if token not in markers and not _INSIDE.search(token))


@lru_cache(maxsize=1)
def _characters() -> dict[str, int]:
    """Return the byte of each character in a byte-level vocabulary: printable Latin-1, then the others from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


def _byte_level(token: str) -> bytes:
    characters = _characters()
    try:
        return bytes([characters[one] for one in token])
    except KeyError:  # a word that was added but is not listed as added
        return token.encode()


def _sentence_piece(token: str) -> bytes:
    byte = _BYTE.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()
