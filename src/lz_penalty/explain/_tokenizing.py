"""Load a tokenizer without its model. Imports transformers only when it is needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from lz_penalty import bundled_model
from lz_penalty.engines._special_tokens import special_token_ids
from lz_penalty.errors import LZPenaltyError

__all__ = ["BUNDLED", "Tokenizer", "decoder", "load_tokenizer", "prompt_of"]

BUNDLED = "bundled"


class Tokenizer(NamedTuple):
    """The parts of a tokenizer that an explanation needs.

    `vocab_size` is the width of the model's logits; `special` are the ids that engines exempt from the penalty.
    """

    name: str
    encode: Callable[[str], list[int]]
    decode: Callable[[list[int]], str]
    vocab_size: int
    special: tuple[int, ...]


def load_tokenizer(name: str) -> Tokenizer:
    """Load the tokenizer of `bundled`, of a Hugging Face id or of a folder."""
    from transformers import AutoConfig, AutoTokenizer

    path: str | Path = bundled_model.path() if name == BUNDLED else name
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise LZPenaltyError(f"tokenizer {name!r} cannot be loaded: {reason}") from None
    try:
        width = AutoConfig.from_pretrained(path).get_text_config().vocab_size
    except (OSError, ValueError, AttributeError):  # a tokenizer without a model
        width = len(tokenizer)
    return Tokenizer(
        name,
        encode=lambda text: tokenizer(text, add_special_tokens=False, verbose=False).input_ids,
        decode=decoder(tokenizer),
        vocab_size=max(width, len(tokenizer)),
        special=special_token_ids(tokenizer),
    )


def prompt_of(tokenizer: Any, text: str, at: int | None = None) -> list[int]:
    """Return the ids of a text with the special tokens that its tokenizer adds; `at` cuts after that many of the text's."""
    whole = tokenizer(text, verbose=False).input_ids
    if at is None:
        return whole
    plain = tokenizer(text, add_special_tokens=False, verbose=False).input_ids
    starts = range(len(whole) - len(plain) + 1)
    begin = next((i for i in starts if whole[i : i + len(plain)] == plain), 0)
    return whole[: begin + at]


def decoder(tokenizer: Any) -> Callable[[list[int]], str]:
    """Return a tokenizer's `decode` for parts of a text: it keeps the leading space, which many tokenizers drop."""

    def decode(ids: list[int]) -> str:
        text = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        begins = str(tokenizer.convert_ids_to_tokens(ids[0])) if ids else ""
        return f" {text}" if begins.startswith("\u2581") and not text.startswith(" ") else text

    return decode
