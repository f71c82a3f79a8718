"""Which tokens structure a conversation, and so are exempt from the penalty."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["special_token_ids"]

_MARKER = re.compile(r"<.+>|\[.+\]", re.DOTALL)  # not the words, spaces and newlines that some vocabularies add
_THINKING = re.compile("think|thought|reason", re.IGNORECASE)


def special_token_ids(tokenizer: Any = None, config: Any = None) -> tuple[int, ...]:
    """The ids that structure a conversation: end of sequence and turn, padding, thinking markers.

    A prompt of many turns is full of them; penalised, they would leave the model less able to stop.

    Args:
        tokenizer: a tokenizer, or a processor that has one: its special tokens, and those of its added tokens that
            look like a marker (`<...>`, `[...]`) and speak of thinking or occur in its chat template.
        config: a model or generation config; its eos, bos and pad ids.
    """
    ids: set[Any] = set()
    if tokenizer is not None:
        templates = str(getattr(tokenizer, "chat_template", None) or "")
        inner = getattr(tokenizer, "tokenizer", tokenizer)
        templates += str(getattr(inner, "chat_template", None) or "")
        ids.update(inner.all_special_ids)
        for token, token_id in inner.get_added_vocab().items():
            if _MARKER.fullmatch(token) and (token in templates or _THINKING.search(token)):
                ids.add(token_id)
    for one in (config, config.get_text_config() if hasattr(config, "get_text_config") else None):
        for name in ("eos_token_id", "bos_token_id", "pad_token_id"):
            value = getattr(one, name, None)
            ids.update(value if isinstance(value, (list, tuple)) else [value])
    return tuple(sorted(token for token in ids if token is not None and token >= 0))  # -1 stands for "none"
