"""Load a tokenizer without its model. Imports transformers only when it is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from lz_penalty.engines._special_tokens import special_token_ids
from lz_penalty.explain._sources import BUNDLED, not_loaded, set_ends, source

__all__ = ["BUNDLED", "Tokenizer", "decoder", "load_tokenizer"]


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
    """Load the tokenizer of `bundled`, `smollm2`, a GGUF file, a Hugging Face id or a folder."""
    from transformers import AutoConfig, AutoTokenizer

    path, options = found = source(name, tokenizer_only=True)
    failures = (Exception,) if options else (OSError, ValueError)  # a damaged GGUF file raises errors of any kind
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(path, **options)
    except failures as error:
        raise not_loaded("tokenizer", name, found, error) from None
    try:
        config = AutoConfig.from_pretrained(path, **options).get_text_config()
        width = config.vocab_size
    except (OSError, ValueError, AttributeError):  # a tokenizer without a model
        width = len(tokenizer)
    else:
        if options:
            set_ends(tokenizer, config)
    return Tokenizer(
        name,
        encode=lambda text: tokenizer(text, add_special_tokens=False, verbose=False).input_ids,
        decode=decoder(tokenizer),
        vocab_size=max(width, len(tokenizer)),
        special=special_token_ids(tokenizer),
    )


def decoder(tokenizer: Any) -> Callable[[list[int]], str]:
    """Return a tokenizer's `decode` for parts of a text: it keeps the leading space, which many tokenizers drop."""

    def decode(ids: list[int]) -> str:
        text = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        begins = str(tokenizer.convert_ids_to_tokens(ids[0])) if ids else ""
        return f" {text}" if begins.startswith("\u2581") and not text.startswith(" ") else text

    return decode
