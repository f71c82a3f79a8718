"""State for vLLM's V2 runner: the histories already lie on the device, so only the settings of each slot are kept.

Requests with a policy are followed on the host, which must know their newest tokens: see `slot_texts`. With drafts it
must know those too, and waits for the step itself.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch

from lz_penalty import _packing as col
from lz_penalty.engines._requests import RequestSettings, send
from lz_penalty.engines.vllm._following import Followed, Following, force_
from lz_penalty.engines.vllm._shadowing import Shadow
from lz_penalty.engines.vllm._slot_texts import SlotTexts
from lz_penalty.ops import prepare_lz_penalty

__all__ = ["SlotState"]

MOST_IDLE = 64  # steps without a request with a policy, after which their texts are not asked for in advance


class Batch(NamedTuple):
    """What stays the same while the batch does.

    Attributes:
        slots: of its requests.
        settings: of its rows, on the device.
        table: those of them that the op reads; written anew when a request with a policy comes to another section.
        penalise: the op, prepared.
    """

    slots: np.ndarray
    settings: torch.Tensor
    table: torch.Tensor
    penalise: Callable[..., Any]


class SlotState:
    """Penalises from vLLM's own histories; under speculative decoding every draft token has its own row.

    Args:
        settings: reads the settings of requests.
        states: vLLM's request states, read only.
        drafts: the most draft tokens that a request can have in a step.
        following: for requests with a policy.
    """

    def __init__(self, settings: RequestSettings, states: Any, drafts: int, following: Following) -> None:
        self._settings = settings
        self._following = following
        self._followed: dict[int, Followed] = {}  # by slot
        self._is_followed = np.zeros(states.max_num_reqs, dtype=bool)
        self._absent: set[int] = set()  # slots whose followed request may have left: vLLM does not say so
        self._idle = 0  # steps without any of them
        self._texts = SlotTexts(states, drafts, self._followed)
        self._shadow = Shadow(states.max_num_reqs, states.device)
        self._states = states
        self._table = np.zeros((states.max_num_reqs, col.COLUMNS), dtype=np.int32)
        self._skips_prompt = np.zeros(states.max_num_reqs, dtype=np.int32)
        self.penalised = np.zeros(states.max_num_reqs, dtype=bool)
        self._sent: Any = None
        self._drafts = drafts
        self._batch: Batch | None = None
        self._warm_up()

    def _warm_up(self) -> None:
        """Have the kernels compiled that most requests need, with a row of the kinds that vLLM's steps have."""
        device = self._states.device
        position, token = (torch.zeros(1, dtype=dtype, device=device) for dtype in (torch.int64, torch.int32))
        ctx = SimpleNamespace(pos=position, expanded_idx_mapping=position, expanded_local_pos=token, input_ids=token)
        logits = torch.zeros((1, 1), device=device)
        for skips_prompt in (None, token):
            self._settings.warm_up(*self._arrays(logits, ctx, skips_prompt))

    def add_request(self, slot: int, params: Any) -> bool:
        """Note the settings of the request that takes this slot."""
        if slot in self._followed:
            self._shadow.settle(slot, self._followed.pop(slot))
            self._absent.discard(slot)
            self._texts.took(slot)
        settings = self._settings.read(params.extra_args, slot)
        self._is_followed[slot] = settings is not None and settings.asked is not None
        was, now = self.penalised[slot], settings is not None
        self.penalised[slot] = now
        if settings is not None:
            self._table[slot] = settings.line
            self._skips_prompt[slot] = not settings.include_prompt
            if settings.asked is not None:
                self._followed[slot] = Followed(self._following, settings, params, (), slot)
                self._texts.took(slot)
                self._idle = 0
        elif was:
            self._table[slot] = self._skips_prompt[slot] = 0
        if was or now:
            self._sent = None
        return now

    def before_step(self) -> None:
        """Send the settings of all slots, if any have changed; ask for the texts that policies must see."""
        self._send_settings()
        self._shadow.collect()
        if self._followed and self._idle < MOST_IDLE:
            self._texts.ask()

    def _send_settings(self) -> None:
        if self._sent is None:
            self._settings.write_special()  # vLLM may have let its memory go while it slept
            self._sent = send(self._lines(), self._states.device)
            self._batch = None

    def _lines(self) -> np.ndarray:
        """Of all slots: the settings, and whether the prompt is left out."""
        return np.concatenate([self._table, self._skips_prompt[:, None]], axis=1)

    def apply(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Penalise the logits of the batch in place."""
        if self._followed:
            return self._apply_policies(logits, ctx)
        return self._penalise(logits, ctx)

    def _penalise(self, logits: torch.Tensor, ctx: Any, lines: np.ndarray | None = None) -> torch.Tensor:
        """Penalise in place. `lines`: of every row, where those of its slot are not right."""
        slots = ctx.idx_mapping_np
        if not self.penalised[slots].any():
            return logits
        batch = self._batch
        if batch is None or self._drafts or not np.array_equal(batch.slots, slots):
            batch = None
        settings = self._sent.index_select(0, ctx.expanded_idx_mapping) if batch is None else batch.settings
        if lines is not None:
            settings[:, : col.COLUMNS] = send(lines, logits.device)
        given = self._arrays(logits, ctx, settings[:, col.COLUMNS] if self._skips_prompt[slots].any() else None)
        if batch is None:
            table = settings[:, : col.COLUMNS].contiguous()
            packed = self._settings.pack(self._largest(slots), table)
            self._batch = batch = Batch(slots.copy(), settings, table, prepare_lz_penalty(*given, config=packed))
        return batch.penalise(*given)

    def _arrays(self, logits: torch.Tensor, ctx: Any, skips_prompt: torch.Tensor | None) -> tuple[Any, ...]:
        """What the op gets. `skips_prompt`: of every row, whether its prompt is left out; `None` if that is so nowhere."""
        lengths = ctx.pos + 1
        tail_ids = tail_lengths = starts = None
        if self._drafts:
            tail_ids, tail_lengths = self._draft_tokens(ctx)
            lengths = lengths - tail_lengths
        if skips_prompt is not None:
            prompts = self._states.prompt_len.gpu.index_select(0, ctx.expanded_idx_mapping)
            starts = torch.minimum(prompts * skips_prompt, lengths)
        token_ids = self._states.all_token_ids.gpu
        return logits, token_ids, lengths, starts, ctx.expanded_idx_mapping, tail_ids, tail_lengths

    # ------------------------------------------------------------ requests with a policy

    def _largest(self, slots: np.ndarray) -> np.ndarray:
        """The lines of these slots, and of all sections of those with a policy: the op stays prepared as they change."""
        followed = [self._followed[slot].settings.lines for slot in slots[self._is_followed[slots]].tolist()]
        return np.concatenate([self._table[slots], *followed])

    def _write_table(self, slots: np.ndarray, rows: torch.Tensor) -> None:
        """Some lines have changed: send them, and let the op find them where it is prepared for this batch."""
        if self._sent is not None:
            self._sent.copy_(send(self._lines(), self._states.device))
            if self._batch is not None and not self._drafts and np.array_equal(self._batch.slots, slots):
                self._batch.table.copy_(self._sent.index_select(0, rows)[:, : col.COLUMNS])
            else:
                self._batch = None

    def _apply_policies(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:
        present = ctx.idx_mapping_np[self._is_followed[ctx.idx_mapping_np]].tolist()
        if self._followed.keys() - present != self._absent:
            self._settle_absent(present)
        if not present:
            self._idle += 1
            self._texts.forget()
            return self._penalise(logits, ctx)
        self._idle = 0
        changed = self._texts.read(present)
        others = [
            slot
            for slot, is_changed in changed.items()
            if is_changed and not np.array_equal(self._table[slot], self._followed[slot].line)
        ]
        for slot in others:
            self._table[slot] = self._followed[slot].line
        if others:
            self._write_table(ctx.idx_mapping_np, ctx.expanded_idx_mapping)
        self._send_settings()
        lines = None
        if self._drafts:
            rows = self._rows(ctx)
            lines, forced = self._ahead(ctx, rows, list(changed))
        else:
            rows = {slot: [row] for row, slot in enumerate(ctx.idx_mapping_np.tolist())}
            forced = [(rows[slot][0], slot, self._followed[slot].forced) for slot in changed]
        shadowed = [slot for slot in changed if self._followed[slot].shadow]
        self._count_steps({slot: rows[slot] for slot in shadowed})
        self._shadow.save(logits)
        self._penalise(logits, ctx, lines)
        self._shadow.compare(logits)
        for row, slot, token in forced:
            if token is not None:
                force_(logits, row, token, overrides_masks=self._followed[slot].overrides_masks)
        return logits

    def _rows(self, ctx: Any) -> dict[int, list[int]]:
        """The rows of each slot."""
        rows: dict[int, list[int]] = {}
        for row, slot in enumerate(ctx.expanded_idx_mapping.tolist()):
            rows.setdefault(slot, []).append(row)
        return rows

    def _ahead(
        self, ctx: Any, rows: dict[int, list[int]], followed: list[int]
    ) -> tuple[np.ndarray, list[tuple[int, int, int | None]]]:
        """The settings of every row, and which of them are forced: rows behind drafts may be in other sections."""
        fed = ctx.input_ids.tolist()
        lines = np.empty((len(fed), col.COLUMNS), dtype=np.int32)
        for slot, its_rows in rows.items():
            lines[its_rows] = self._table[slot]
        forced = []
        for slot in followed:
            ahead = self._followed[slot].ahead([fed[row] for row in rows[slot][1:]])
            for row, (line, token) in zip(rows[slot], ahead, strict=True):
                lines[row] = line
                forced.append((row, slot, token))
        return lines, forced

    def _count_steps(self, shadowed: dict[int, list[int]]) -> None:
        """Count a step of requests in shadow mode, given their rows; with drafts, the first row of each alone."""
        for slot in shadowed:
            self._shadow.step(slot, self._followed[slot])
        rows = [(row, None if i else slot) for slot, its_rows in shadowed.items() for i, row in enumerate(its_rows)]
        self._shadow.choose([row for row, _ in rows], [slot for _, slot in rows])

    def _settle_absent(self, slots: list[int]) -> None:
        """Settle those that are not in the step; they may come back."""
        absent = self._followed.keys() - set(slots)
        for slot in absent - self._absent:
            self._shadow.settle(slot, self._followed[slot])
        self._absent = absent

    def _draft_tokens(self, ctx: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The draft tokens that each row sees: those fed at the rows of its request up to its own, but the first."""
        rows = ctx.input_ids.shape[0]
        first = torch.arange(1, rows + 1, device=ctx.input_ids.device) - ctx.expanded_local_pos
        place = first[:, None] + torch.arange(self._drafts, device=ctx.input_ids.device)
        return ctx.input_ids[place.clamp_(max=rows - 1)], ctx.expanded_local_pos
