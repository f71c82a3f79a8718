"""Special tokens are exempt from the penalty: which they are, and how a request's settings get them. For all engines."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, overload
from weakref import WeakValueDictionary

from lz_penalty._checks import MAX_EXEMPT, MAX_TOKEN_IDS
from lz_penalty.config import LZPenaltyConfig
from lz_penalty.errors import bad_value
from lz_penalty.policy import SECTIONS, Policy, RequestPolicy
from lz_penalty.policy._vocabulary import text_tokenizer

__all__ = ["exempting", "special_token_ids"]

MAX_SPECIAL = MAX_EXEMPT - MAX_TOKEN_IDS  # so that a request's own ids always fit too
_LOGGER = logging.getLogger("lz_penalty")
_MARKER = re.compile(r"<.+>|\[.+\]", re.DOTALL)  # not the words, spaces and newlines that some vocabularies add
_THINKING = re.compile("think|thought|reason", re.IGNORECASE)
_ENDS = ("eos_token_id", "eos_token_ids", "bos_token_id", "pad_token_id")
_warned: WeakValueDictionary[int, Any] = WeakValueDictionary()  # by identity: not every tokenizer has a hash


def special_token_ids(tokenizer: Any = None, config: Any = None, *others: Any) -> tuple[int, ...]:
    """Return the ids that structure a conversation: end of sequence and turn, padding, thinking markers. At most 1,023.

    A prompt of many turns is full of them. If they were penalised, the model would be less able to stop. If there are more
    than 1,023, those that configs and tokenizer name as end, begin or padding come first, then the tokenizer's others in
    ascending order. A warning says so, once for each tokenizer.

    Args:
        tokenizer: a tokenizer, or a processor that has one. Gives its special tokens, and those of its added tokens that
            look like a marker (`<...>`, `[...]`) and speak of thinking or occur in its chat template.
        config: a model or generation config. Gives its eos, bos and pad ids.
        others: further configs.
    """
    inner = text_tokenizer(tokenizer)
    first = sorted({token for one in (config, *others, tokenizer, inner) for token in _ends(one)})
    known = set(first)
    ids = [*first, *(token for token in sorted(_of_tokenizer(tokenizer, inner)) if token not in known)]
    if len(ids) > MAX_SPECIAL:
        _warn(inner, len(ids))
    return tuple(sorted(ids[:MAX_SPECIAL]))


@overload
def exempting(asked: LZPenaltyConfig, ids: Iterable[int]) -> LZPenaltyConfig: ...
@overload
def exempting(asked: RequestPolicy, ids: Iterable[int]) -> RequestPolicy: ...
def exempting(asked: LZPenaltyConfig | RequestPolicy, ids: Iterable[int]) -> LZPenaltyConfig | RequestPolicy:
    """Return a config, or a policy in each of its sections, with these ids exempt besides its own.

    >>> exempting(LZPenaltyConfig(exempt_token_ids=(5, 7)), (0, 7)).exempt_token_ids
    (0, 5, 7)
    """
    if isinstance(asked, LZPenaltyConfig):
        return replace(asked, exempt_token_ids=tuple({*asked.exempt_token_ids, *ids}))
    configs = [config and exempting(config, ids) for config in asked.policy.configs]
    return replace(asked, policy=Policy(**dict(zip(SECTIONS, configs, strict=True))))


def _ends(source: Any) -> Iterator[int]:
    """Yield the end, begin and pad ids that a config, its text config or a tokenizer names."""
    for one in (source, source.get_text_config() if hasattr(source, "get_text_config") else None):
        for name in _ENDS:
            value = getattr(one, name, None)
            for token in value if isinstance(value, (list, tuple, set, frozenset)) else [value]:
                if token is not None and token >= 0:  # -1 means "none"
                    yield token


def _of_tokenizer(tokenizer: Any, inner: Any) -> set[int]:
    """Return the special tokens of a tokenizer, and its markers."""
    if tokenizer is None:
        return set()
    if not hasattr(inner, "get_added_vocab"):
        raise bad_value(
            "tokenizer", tokenizer, "a tokenizer of transformers, such as AutoTokenizer.from_pretrained(...)"
        )
    templates = "".join(str(getattr(one, "chat_template", None) or "") for one in (tokenizer, inner))
    ids = {token for token in inner.all_special_ids if token is not None and token >= 0}
    for token, token_id in inner.get_added_vocab().items():
        if _MARKER.fullmatch(token) and (token in templates or _THINKING.search(token)):
            ids.add(token_id)
    return ids


def _warn(tokenizer: Any, count: int) -> None:
    """Log how many special tokens are left out, once for each tokenizer that can be remembered."""
    if tokenizer is not None and _warned.get(id(tokenizer)) is tokenizer:
        return
    with suppress(TypeError):
        _warned[id(tokenizer)] = tokenizer
    _LOGGER.warning(
        "the model has %d special tokens: only %d of them are exempt, the ends of sequence and padding first",
        count,
        MAX_SPECIAL,
    )
