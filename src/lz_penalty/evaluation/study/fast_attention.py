"""Decoding on a CPU without copying the cache, which is most of the work of a small model behind some hundred tokens.

transformers' attention writes the keys and values out once per query head in every step, and its cache is copied to grow.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.cache_utils import DynamicLayer
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

__all__ = ["cache_with_room", "use_fast_attention"]

NAME = "lz-grouped"
ROOM = 256  # tokens
PLAIN = frozenset({"dropout", "is_causal", "position_ids", "use_cache", "sliding_window", "output_attentions"})


def use_fast_attention(model: Any) -> None:
    """Switch a model on a CPU to grouped attention, if it uses PyTorch's and the two are the same."""
    config = model.config
    heads = getattr(config, "num_attention_heads", None)
    shared = getattr(config, "num_key_value_heads", None) or heads
    if model.device.type != "cpu" or config._attn_implementation != "sdpa" or heads == shared:
        return
    if getattr(model, "_supports_attention_backend", False):
        model.set_attn_implementation(NAME)


def grouped_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of one new token per row; all query heads of a key head at once. Anything else is left to PyTorch.

    Args:
        module: of the model.
        query: `[rows, heads, tokens, size]`.
        key: `[rows, shared heads, length, size]`.
        value: the same.
        attention_mask: `[rows, 1, tokens, length]`, bool.
        scaling: of the products.
        others: of some models' own.
    """
    rows, heads, tokens, size = query.shape
    is_plain = (
        1 == tokens < key.shape[2]  # a first token may be padding, which sees nothing
        and value.shape[-1] == size
        and query.dtype in (torch.float32, torch.float64)  # PyTorch's is more exact in the others
        and (attention_mask is None or attention_mask.dtype == torch.bool)
        and all(others[name] is None for name in others.keys() - PLAIN)
    )
    if not is_plain or scaling is None:
        return ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, attention_mask, scaling=scaling, **others)
    shared, length = key.shape[1:3]
    together = (query * scaling).view(rows * shared, heads // shared, size)
    weights = torch.bmm(together, key.reshape(rows * shared, length, size).transpose(1, 2)).view(rows, heads, length)
    if attention_mask is not None:
        weights.masked_fill_(~attention_mask[:, 0, :, :length], -torch.inf)
    weights = weights.softmax(-1).view(rows * shared, heads // shared, length)
    return torch.bmm(weights, value.reshape(rows * shared, length, size)).view(rows, 1, heads, size), None


AttentionInterface.register(NAME, grouped_attention)
AttentionMaskInterface.register(NAME, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])


# ---------------------------------------------------------------- the cache


class _Room(DynamicLayer):
    """Keys and values of one layer, in arrays with room for more."""

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Make the arrays, empty."""
        super().lazy_initialization(key_states, value_states)
        self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]
        self._room = [self.keys, self.values]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append, and return all of them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys = self._append(0, self.keys, key_states)
        self.values = self._append(1, self.values, value_states)
        return self.keys, self.values

    def _append(self, which: int, known: torch.Tensor | None, new: torch.Tensor) -> torch.Tensor:
        assert known is not None
        room, begin, end = self._room[which], known.shape[2], known.shape[2] + new.shape[2]
        if room.data_ptr() != known.data_ptr() or room.shape[0] != len(known) or room.shape[2] < end:
            room = known.new_empty(*known.shape[:2], end + end // 4 + ROOM, known.shape[3])
            room[:, :, :begin] = known
            self._room[which] = room
        room[:, :, begin:end] = new
        return room[:, :, :end]


def cache_with_room(model: Any) -> DynamicCache:
    """A cache for this model that is copied only now and then."""
    cache = DynamicCache(config=model.config)
    cache.layers = [_Room() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache
