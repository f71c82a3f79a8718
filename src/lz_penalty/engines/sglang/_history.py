"""The last tokens of every penalised request, on the device. One launch per step stores the newest and penalises.

SGLang decodes ahead of the host, so only the device knows the newest token: it is the step's input. A history is
loaded from the host once, when its prefill is complete and the host still knows everything.

    history  [slots, capacity]   a slot is the request's row in SGLang's own `req_to_token`
    base     per request         how many tokens of the request come before the first one in its history

One decoding step: `ForwardBatch.init_new` -> `History.step` before the forward pass, `ModelRunner.sample` -> `History.apply`
after it (the hooks in `_hooks.py`). Without a policy, `apply` is one call of the prepared op. With one, `PolicyRows` does
its part before and after that call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lz_penalty import _packing as col
from lz_penalty._packing import PackedConfig
from lz_penalty.engines._device import padded, send, store
from lz_penalty.engines._generation import Generation
from lz_penalty.engines._requests import Settings, SettingsReader
from lz_penalty.engines.sglang._policies import PolicyRows
from lz_penalty.errors import LZPenaltyError
from lz_penalty.ops import prepare_lz_penalty

__all__ = ["History", "Penalised", "Step"]

# The types of SGLang's arrays. Kernels are compiled for them before the first step.
LOGITS, INDICES = torch.float32, torch.int64


@dataclass(eq=False)
class Penalised:
    """A request with the penalty.

    Attributes:
        slot, base, settings: set when its history is loaded.
        generation: `None` without a policy.
        follower: `None` without a policy, unless the server counts loops; see `Follower`.
    """

    slot: int = -1
    base: int = 0
    settings: Settings | None = None
    generation: Generation | None = None
    follower: Any = None

    @property
    def settings_row(self) -> np.ndarray:
        """The settings row of the token to come."""
        assert self.settings is not None
        return self.settings.settings_row if self.generation is None else self.generation.settings_row


@dataclass(eq=False)
class Step:
    """What a forward pass needs to be penalised.

    Attributes:
        requests: of each row, `None` for rows without the penalty.
        packed: the settings of the rows.
        bases: int64 `[rows]` on the device; `None` where all are 0.
        newest_at: int64 `[rows]`, the place of each row's newest token among the step's inputs, -1 where the history has
            it already. `None`: every row has one input, its newest token.
        policies: the rows with a policy, `None` if there are none.
        penalise: the op, prepared when the step is first taken.
    """

    requests: list[Penalised | None]
    packed: PackedConfig
    bases: torch.Tensor | None
    newest_at: torch.Tensor | None = None
    policies: PolicyRows | None = None
    penalise: Callable[..., Any] | None = None


class History:
    """The histories of all slots of one model runner.

    Args:
        settings: reads the settings of requests.
        slots: rows of SGLang's `req_to_token`.
        context_length: the longest sequence.
        device: where the logits are.

    Attributes:
        device: as given.
    """

    def __init__(self, settings: SettingsReader, slots: int, context_length: int, device: torch.device) -> None:
        self._settings = settings
        self.device = device
        self._capacity = settings.capacity(context_length)
        self._tokens = torch.zeros((slots, self._capacity), dtype=torch.int32, device=device)
        self._last: Step | None = None

    def warm_up(self) -> None:
        """Have the kernels compiled that most requests need, with an empty row that belongs to no request."""
        logits = torch.zeros((1, 1), dtype=LOGITS, device=self.device)
        zero = torch.zeros(1, dtype=INDICES, device=self.device)
        self._settings.warm_up(logits, self._tokens, zero, None, zero, None, None, zero - 1)

    # ------------------------------------------------------------ before the forward pass

    def load(self, loads: list[tuple[Penalised, dict[str, Any] | None, int, list[int], int]]) -> None:
        """Load requests whose prefill is complete: each with its parameters, slot, all its tokens and prompt length."""
        contexts = []
        for request, params, slot, tokens, prompt_length in loads:
            request.slot, request.settings = slot, self._settings.read(params, slot)
            begin = len(tokens)
            if request.settings is not None:
                begin = max(
                    0 if request.settings.include_prompt else prompt_length, len(tokens) - request.settings.reach
                )
                if request.generation is not None:
                    request.generation.settings_rows = request.settings.settings_rows
            request.base = begin
            contexts.append(tokens[begin:])
        self._last = None
        store(self._tokens, [request.slot for request, *_ in loads], padded(contexts))

    def step(self, requests: list[Penalised | None], lengths: np.ndarray, newest_at: np.ndarray | None) -> Step:
        """Prepare a forward pass of these rows, whose sequences have these lengths with the newest token."""
        if self._make_room(requests, lengths):
            self._last = None
        step = self._last
        if newest_at is not None:
            step = self._new_step(requests, send(newest_at, self.device))
        elif step is None or step.requests != requests:
            step = self._last = self._new_step(requests, None)
        if step.policies is not None:
            step.policies.lengths = lengths.copy()
        return step

    def _new_step(self, requests: list[Penalised | None], newest_at: torch.Tensor | None) -> Step:
        table = np.zeros((len(requests), col.COLUMNS), dtype=np.int32)
        bases = np.zeros(len(requests), dtype=np.int64)
        has_policy = False
        for row, request in enumerate(requests):
            if request is not None and request.settings is not None:
                table[row], bases[row] = request.settings.settings_row, request.base
                has_policy |= request.generation is not None
        policies = PolicyRows(requests, self._settings, self.device) if has_policy else None
        packed = self._settings.pack(table) if policies is None else policies.packed
        return Step(requests, packed, send(bases, self.device) if bases.any() else None, newest_at, policies)

    def _make_room(self, requests: list[Penalised | None], lengths: np.ndarray) -> bool:
        """Move the tokens that still matter to the beginning of full slots, on the device; return whether any was full."""
        if lengths.max() <= self._capacity:
            return False
        moved = False
        for request, length in zip(requests, lengths.tolist(), strict=True):
            if request is None or request.settings is None or length - request.base <= self._capacity:
                continue
            end, reach = length - 1 - request.base, request.settings.reach  # the newest token is not stored yet
            self._tokens[request.slot, :reach] = self._tokens[request.slot, end - reach : end].clone()
            request.base += end - reach
            moved = True
        return moved

    # ------------------------------------------------------------ after it

    def apply(self, step: Step, logits: torch.Tensor, batch: Any) -> None:
        """Store the newest tokens and penalise the logits, in place; `batch` is SGLang's `ForwardBatch`."""
        rows = len(step.requests)
        if logits.shape[0] < rows:
            raise LZPenaltyError(
                f"SGLang gave {logits.shape[0]} rows of logits for {rows} requests: the LZ penalty cannot tell which row "
                "is whose. Report how you started SGLang; SGLANG_PLUGINS switches the plug-in off."
            )
        lengths = batch.seq_lens[:rows]
        if step.bases is not None:
            lengths = lengths - step.bases
        if self.device.type == "cpu":  # rows without the penalty may be longer than a slot; on a GPU the op clamps them
            lengths = lengths.clamp(max=self._capacity)
        newest = batch.input_ids[:rows]
        if step.newest_at is not None:
            newest = torch.where(step.newest_at < 0, -1, batch.input_ids[step.newest_at.clamp(min=0)])
        logits, slots = logits[:rows], batch.req_pool_indices[:rows]
        given = (logits, self._tokens, lengths, None, slots, None, None, newest)
        if step.policies is not None:
            step.policies.before_penalty(logits)
        if step.penalise is None:
            step.penalise = prepare_lz_penalty(*given, config=step.packed)
        step.penalise(*given)
        if step.policies is not None:
            step.policies.after_penalty(logits)
