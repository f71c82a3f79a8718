"""State for vLLM's V2 runner: the histories already lie on the device, so only the settings of each slot are kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from lz_penalty import packing as col
from lz_penalty.engines.request_settings import RequestSettings, send
from lz_penalty.ops import prepare_lz_penalty

__all__ = ["SlotState"]


class Batch(NamedTuple):
    """What stays the same while the batch does.

    Attributes:
        slots: of its requests.
        settings: of its rows, on the device.
        penalise: the op, prepared.
    """

    slots: np.ndarray
    settings: torch.Tensor
    penalise: Callable[..., Any]


class SlotState:
    """Penalises from vLLM's own histories; under speculative decoding every draft token has its own row.

    Args:
        settings: reads the settings of requests.
        states: vLLM's request states, read only.
        drafts: the most draft tokens that a request can have in a step.
    """

    def __init__(self, settings: RequestSettings, states: Any, drafts: int) -> None:
        self._settings = settings
        self._states = states
        self._table = np.zeros((states.max_num_reqs, col.COLUMNS), dtype=np.int32)
        self._skips_prompt = np.zeros(states.max_num_reqs, dtype=np.int32)
        self.penalised = np.zeros(states.max_num_reqs, dtype=bool)
        self._sent: Any = None
        self._drafts = drafts
        self._batch: Batch | None = None

    def add_request(self, slot: int, params: Any) -> bool:
        """Note the settings of the request that takes this slot."""
        settings = self._settings.read(params.extra_args, slot)
        was, now = self.penalised[slot], settings is not None
        self.penalised[slot] = now
        if settings is not None:
            self._table[slot] = settings.line
            self._skips_prompt[slot] = not settings.include_prompt
        elif was:
            self._table[slot] = self._skips_prompt[slot] = 0
        if was or now:
            self._sent = None
        return now

    def send_settings(self) -> None:
        """Send the settings of all slots, if any have changed."""
        if self._sent is None:
            both = np.concatenate([self._table, self._skips_prompt[:, None]], axis=1)
            self._sent = send(both, self._states.device)
            self._batch = None

    def apply(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Penalise the logits of the batch in place."""
        slots = ctx.idx_mapping_np
        if not self.penalised[slots].any():
            return logits
        batch = self._batch
        if batch is None or self._drafts or not np.array_equal(batch.slots, slots):
            batch = None
        settings = self._sent.index_select(0, ctx.expanded_idx_mapping) if batch is None else batch.settings
        lengths = ctx.pos + 1
        tail_ids = tail_lengths = None
        if self._drafts:
            tail_ids, tail_lengths = self._draft_tokens(ctx)
            lengths = lengths - tail_lengths
        starts = None
        if self._skips_prompt[slots].any():
            prompts = self._states.prompt_len.gpu.index_select(0, ctx.expanded_idx_mapping)
            starts = torch.minimum(prompts * settings[:, col.COLUMNS], lengths)
        token_ids = self._states.all_token_ids.gpu
        given = (logits, token_ids, lengths, starts, ctx.expanded_idx_mapping, tail_ids, tail_lengths)
        if batch is None:
            packed = self._settings.pack(self._table[slots], settings[:, : col.COLUMNS].contiguous())
            self._batch = batch = Batch(slots.copy(), settings, prepare_lz_penalty(*given, config=packed))
        return batch.penalise(*given)

    def _draft_tokens(self, ctx: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The draft tokens that each row sees: those fed at the rows of its request up to its own, but the first."""
        rows = ctx.input_ids.shape[0]
        first = torch.arange(1, rows + 1, device=ctx.input_ids.device) - ctx.expanded_local_pos
        place = first[:, None] + torch.arange(self._drafts, device=ctx.input_ids.device)
        return ctx.input_ids[place.clamp_(max=rows - 1)], ctx.expanded_local_pos
