"""Batched decoding in which rows that have ended leave the batch, so that one loop does not hold up its neighbours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from lz_penalty.evaluation.generation import Loaded
from lz_penalty.evaluation.study.fast_attention import cache_with_room

__all__ = ["decode"]

KEEP = 0.75  # rows leave together, when at most this share of the batch is still under way
Choose = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@torch.no_grad()
def decode(
    loaded: Loaded, prompts: Sequence[Sequence[int]], choose: Choose, new_tokens: int, *, may_end: bool
) -> list[list[int]]:
    """The new tokens of every prompt, without the end token.

    Args:
        loaded: the model.
        prompts: token ids.
        choose: takes `ids [rows, length]`, `logits [rows, vocab]` and `rows [rows]`, the numbers of the prompts they
            belong to, and gives the next token of each.
        new_tokens: how many to write at most.
        may_end: whether a row may end before that; where not, its end tokens are masked.
    """
    model, tokenizer = loaded
    ends = _ends(model)
    width = max(map(len, prompts))
    ids = torch.tensor([[tokenizer.pad_token_id] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    ids, mask = ids.to(model.device), mask.to(model.device)
    rows = torch.arange(len(prompts), device=model.device)
    alive = torch.ones_like(rows, dtype=torch.bool)
    cache: Any = cache_with_room(model)
    written: list[list[int]] = [[] for _ in prompts]
    step = ids
    for _ in range(new_tokens):
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -step.shape[1] :]
        logits = model(
            step, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True, logits_to_keep=1
        ).logits[:, -1]
        if not may_end:
            logits[:, ends] = -torch.inf
        chosen = choose(ids, logits, rows)
        if may_end:
            alive &= ~torch.isin(chosen, ends)
        for row, token, goes_on in zip(rows.tolist(), chosen.tolist(), alive.tolist()):
            if goes_on:
                written[row].append(token)
        if not alive.any():
            break
        step = chosen[:, None]
        ids, mask = torch.cat([ids, step], 1), torch.cat([mask, torch.ones_like(step)], 1)
        if alive.sum() <= KEEP * len(alive):
            kept = alive.nonzero()[:, 0]
            cache.batch_select_indices(kept)
            ids, mask, rows, alive, step = ids[kept], mask[kept], rows[kept], alive[kept], step[kept]
    return written


def _ends(model: Any) -> torch.Tensor:
    ends = model.generation_config.eos_token_id
    return torch.tensor(ends if isinstance(ends, list) else [ends], device=model.device)
