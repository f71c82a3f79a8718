"""The tokenizer of vLLM's model, and which of its tokens structure a conversation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from vllm.logger import init_logger

from lz_penalty.engines._special_tokens import special_token_ids

__all__ = ["special_tokens_of", "tokenizer_of"]

_LOGGER = init_logger("vllm.lz_penalty")  # so that vLLM shows it


def special_tokens_of(model_config: Any) -> tuple[int, ...]:
    """The ids that are exempt for every request of this model."""
    generation = SimpleNamespace(**model_config.try_get_generation_config())
    ids = special_token_ids(tokenizer_of(model_config), model_config.hf_config, generation)
    _LOGGER.info("special tokens that are exempt: %s", ids)
    return ids


def tokenizer_of(model_config: Any) -> Any:
    """The tokenizer of this model; `None` if vLLM was told to do without."""
    from vllm.tokenizers import cached_tokenizer_from_config  # the only place that needs vLLM's tokenizers

    return None if model_config.skip_tokenizer_init else cached_tokenizer_from_config(model_config)
