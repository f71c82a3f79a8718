"""State for vLLM's V2 runner: vLLM has the histories on the device, so only the settings of each slot are kept.

One decoding step: `before_step` sends the settings rows of new requests before the forward pass, `apply` penalises after it.

Requests with a policy are followed on the host, which must know their newest tokens: see `_slot_texts.py`. With drafts, it
must know these too, and waits for the step itself.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch

from lz_penalty import _packing as col
from lz_penalty.engines._device import Shadow, force_, send
from lz_penalty.engines._generation import Generation
from lz_penalty.engines._requests import SettingsReader
from lz_penalty.engines.vllm._registry import GenerationRegistry
from lz_penalty.engines.vllm._slot_texts import SlotTexts
from lz_penalty.ops import prepare_lz_penalty

__all__ = ["V2State"]

MOST_IDLE = 64  # steps without a request with a policy, after which texts are not asked for in advance


class Batch(NamedTuple):
    """What is kept as long as the same requests are in the batch.

    Attributes:
        slots: of its requests.
        settings: of its rows, on the device.
        table: the part of them that the op reads; rewritten when a request with a policy comes to another section.
        penalise: the prepared op.
    """

    slots: np.ndarray
    settings: torch.Tensor
    table: torch.Tensor
    penalise: Callable[..., Any]


class V2State:
    """Penalises from vLLM's own histories; under speculative decoding every draft token has its own row.

    Args:
        settings: reads the settings of requests.
        states: vLLM's request states, read only.
        drafts: the most draft tokens that a request can have in a step.
        registry: starts and counts the generations of the engine.
    """

    def __init__(self, settings: SettingsReader, states: Any, drafts: int, registry: GenerationRegistry) -> None:
        self._settings = settings
        self._registry = registry
        # By slot, until another request takes the slot: vLLM tells a processor which requests come, not which leave. So steps
        # after the last request with a policy has left still come to `_apply_policies`, and `MOST_IDLE` of them copy texts.
        self._generations: dict[int, Generation] = {}
        self._applied = False  # whether a part of this step's batch was penalised
        self._present: set[int] = set()  # slots with a policy in these parts
        self._has_policy = np.zeros(states.max_num_reqs, dtype=bool)
        self._gone: set[int] = set()  # slots with a policy that are not in the step: the request may have left
        self._idle = 0  # steps without any request with a policy
        self._texts = SlotTexts(states, drafts, self._generations)
        self._shadow = Shadow(states.device)
        self._states = states
        self._table = np.zeros((states.max_num_reqs, col.COLUMNS), dtype=np.int32)
        self._skips_prompt = np.zeros(states.max_num_reqs, dtype=np.int32)
        self.penalised = np.zeros(states.max_num_reqs, dtype=bool)
        self.without_counts = np.zeros(states.max_num_reqs, dtype=bool)  # penalised, with no policy that counts loops
        self._sent: Any = None
        self._drafts = drafts
        self._batch: Batch | None = None
        self._warm_up()

    def _warm_up(self) -> None:
        """Have the kernels compiled that most requests need, with arrays of the types that vLLM's steps have."""
        device = self._states.device
        position, token = (torch.zeros(1, dtype=dtype, device=device) for dtype in (torch.int64, torch.int32))
        ctx = SimpleNamespace(pos=position, expanded_idx_mapping=position, expanded_local_pos=token, input_ids=token)
        logits = torch.zeros((1, 1), device=device)
        for skips_prompt in (None, token):
            self._settings.warm_up(*self._arrays(logits, ctx, skips_prompt))

    def add_request(self, slot: int, params: Any) -> bool:
        """Note the settings of the request that takes this slot; return whether it is penalised."""
        if slot in self._generations:
            self._registry.note_left(slot, self._generations.pop(slot))
            self._gone.discard(slot)
            self._texts.took(slot)
        settings = self._settings.read(params.extra_args, slot)
        self._has_policy[slot] = settings is not None and settings.asked is not None
        was, now = self.penalised[slot], settings is not None
        self.penalised[slot] = now
        self.without_counts[slot] = settings is not None and not (settings.asked and settings.asked.looks_for_runs)
        if settings is not None:
            self._table[slot] = settings.settings_row
            self._skips_prompt[slot] = not settings.include_prompt
            if settings.asked is not None:
                self._generations[slot] = self._registry.start(settings, params, (), slot)
                self._texts.took(slot)
                self._idle = 0
        elif was:
            self._table[slot] = self._skips_prompt[slot] = 0
        if was or now:
            self._sent = None
        return now

    def before_step(self) -> None:
        """Send the settings of all slots, if any have changed, and ask for the texts that policies must see."""
        self._send_settings()
        if self._applied:
            self._end_step()
        self._registry.count_left()
        if self._generations and self._idle < MOST_IDLE:
            self._texts.ask()
        else:
            self._texts.forget()

    def _end_step(self) -> None:
        """Count the requests with a policy that were not in the last step. They may have left, or come back."""
        gone = self._generations.keys() - self._present
        for slot in gone - self._gone:
            self._registry.note_left(slot, self._generations[slot])
        self._gone = gone
        self._idle = 0 if self._present else self._idle + 1
        self._applied, self._present = False, set()

    def _send_settings(self) -> None:
        if self._sent is None:
            self._settings.write_special()  # vLLM may have discarded this memory while it slept
            self._sent = send(self._settings_rows(), self._states.device)
            self._batch = None

    def _settings_rows(self) -> np.ndarray:
        """Return, for all slots, the settings row and whether the prompt is left out."""
        return np.concatenate([self._table, self._skips_prompt[:, None]], axis=1)

    def apply(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Penalise the logits of the batch in place, or of a part of it: with drafts, vLLM may divide a large batch."""
        if self._generations:
            return self._apply_policies(logits, ctx)
        return self._penalise(logits, ctx)

    def _penalise(self, logits: torch.Tensor, ctx: Any, settings_rows: np.ndarray | None = None) -> torch.Tensor:
        """Penalise in place. `settings_rows`: the settings row of every row, where drafts may be in other sections."""
        slots = ctx.idx_mapping_np
        if not self.penalised[slots].any():
            return logits
        batch = self._batch
        if batch is None or self._drafts or not np.array_equal(batch.slots, slots):
            batch = None
        settings = self._sent.index_select(0, ctx.expanded_idx_mapping) if batch is None else batch.settings
        if settings_rows is not None:
            settings[:, : col.COLUMNS] = send(settings_rows, logits.device)
        given = self._arrays(logits, ctx, settings[:, col.COLUMNS] if self._skips_prompt[slots].any() else None)
        if batch is None:
            table = settings[:, : col.COLUMNS].contiguous()
            packed = self._settings.pack(self._largest(slots), table)
            self._batch = batch = Batch(slots.copy(), settings, table, prepare_lz_penalty(*given, config=packed))
        return batch.penalise(*given)

    def _arrays(self, logits: torch.Tensor, ctx: Any, skips_prompt: torch.Tensor | None) -> tuple[Any, ...]:
        """Return the op's arguments. `skips_prompt`: of every row, whether its prompt is left out; `None`: no prompt is."""
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
        """Return all settings rows that requests in these slots can have, so that the op stays prepared for all sections."""
        settings_rows = [self._generations[slot].settings_rows for slot in slots[self._has_policy[slots]].tolist()]
        return np.concatenate([self._table[slots], *settings_rows])

    def _write_table(self, slots: np.ndarray, rows: torch.Tensor) -> None:
        """Send settings rows that have changed, also to the table of the prepared op if it is for this batch."""
        if self._sent is not None:
            self._sent.copy_(send(self._settings_rows(), self._states.device))
            if self._batch is not None and not self._drafts and np.array_equal(self._batch.slots, slots):
                self._batch.table.copy_(self._sent.index_select(0, rows)[:, : col.COLUMNS])
            else:
                self._batch = None

    def _apply_policies(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:
        present = ctx.idx_mapping_np[self._has_policy[ctx.idx_mapping_np]].tolist()
        self._applied = True
        if not present:
            return self._penalise(logits, ctx)
        self._present.update(present)
        generations = self._read(present, ctx)
        if self._drafts:
            rows = self._rows(ctx)
            settings_rows, forced = self._rows_after_drafts(ctx, rows, generations)
        else:
            rows = {slot: [row] for row, slot in enumerate(ctx.idx_mapping_np.tolist())}
            settings_rows, forced = None, [(rows[slot][0], one, one.forced) for slot, one in generations.items()]
        shadowed = [
            (row, one, row == rows[slot][0]) for slot, one in generations.items() if one.shadow for row in rows[slot]
        ]
        self._shadow.choose([row for row, *_ in shadowed])
        self._shadow.save(logits)
        self._penalise(logits, ctx, settings_rows)
        flags = self._shadow.restore(logits)
        for i, (_, generation, is_first) in enumerate(shadowed):
            if flags is not None and is_first:  # rows after drafts are not counted
                generation.note(flags, i)
        for row, generation, token in forced:
            if token is not None:
                force_(logits, row, token, "overridden" if generation.overrides_masks else "obeyed")
        return logits

    def _read(self, slots: list[int], ctx: Any) -> dict[int, Generation]:
        """Let the generations in these slots read their new tokens, and send the settings rows that change; return them."""
        changed = self._texts.read(slots)
        generations = {slot: self._generations[slot] for slot in changed}
        others = [
            slot
            for slot, one in generations.items()
            if changed[slot] and not np.array_equal(self._table[slot], one.settings_row)
        ]
        for slot in others:
            self._table[slot] = generations[slot].settings_row
        if others:
            self._write_table(ctx.idx_mapping_np, ctx.expanded_idx_mapping)
        self._send_settings()
        return generations

    def _rows(self, ctx: Any) -> dict[int, list[int]]:
        """Return the rows of each slot."""
        rows: dict[int, list[int]] = {}
        for row, slot in enumerate(ctx.expanded_idx_mapping.tolist()):
            rows.setdefault(slot, []).append(row)
        return rows

    def _rows_after_drafts(
        self, ctx: Any, rows: dict[int, list[int]], generations: dict[int, Generation]
    ) -> tuple[np.ndarray, list[tuple[int, Generation, int | None]]]:
        """Return the settings row of every row, and the tokens that are forced: rows after drafts may be in other sections."""
        fed = ctx.input_ids.tolist()
        settings_rows = np.empty((len(fed), col.COLUMNS), dtype=np.int32)
        for slot, its_rows in rows.items():
            settings_rows[its_rows] = self._table[slot]
        forced = []
        for slot, generation in generations.items():
            after = generation.after_drafts([fed[row] for row in rows[slot][1:]])
            for row, (settings_row, token) in zip(rows[slot], after, strict=True):
                settings_rows[row] = settings_row
                forced.append((row, generation, token))
        return settings_rows, forced

    def _draft_tokens(self, ctx: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the draft tokens that each row sees: the inputs of its request's rows up to its own, except the first."""
        rows = ctx.input_ids.shape[0]
        first = torch.arange(1, rows + 1, device=ctx.input_ids.device) - ctx.expanded_local_pos
        place = first[:, None] + torch.arange(self._drafts, device=ctx.input_ids.device)
        return ctx.input_ids[place.clamp_(max=rows - 1)], ctx.expanded_local_pos
