"""Counting loops in the outputs of penalised requests, where the server's settings ask for it (`count_loops`).

Generations that look for loops count themselves; `V1Loops` and `V2Loops` look at all other penalised requests. The worker
counts, and the process with the metrics endpoint shows its counters if PROMETHEUS_MULTIPROC_DIR is set. The log has them in
any case.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from vllm.logger import init_logger

from lz_penalty.engines._device import Later
from lz_penalty.engines._generation import LOOPS_ONLY, NO_SECTIONS, Generation
from lz_penalty.engines.vllm._slot_texts import newest_tokens

__all__ = ["EVERY", "LoopCounts", "V1Loops", "V2Loops"]

_LOGGER = init_logger("vllm.lz_penalty")  # so that vLLM shows it
EVERY = 32  # steps between two looks at the texts
_LOG_SECONDS = 60.0


class Text(NamedTuple):
    """One request's output: which request it is, the number of the first token that was read, and what was found."""

    owner: Any
    first: int
    generation: Generation


class LoopCounts:
    """Reads the outputs in all slots and counts the loops in them.

    Attributes:
        found: what was counted in this process; see `lz_penalty.policy.counters`.
    """

    def __init__(self) -> None:
        self.found: Counter[str] = Counter()
        self._texts: dict[int, Text] = {}
        self._logged = time.monotonic()

    def look(self, slot: int, owner: Any, length: int, tokens: Sequence[int], first: int = 0) -> None:
        """Read what the output in this slot has gained.

        Args:
            slot: where the request is.
            owner: another object is another request.
            length: of the output.
            tokens: the output from its token number `first` on.
            first: see `tokens`.
        """
        text = self._texts.get(slot)
        if text is None or text.owner is not owner or not first <= text.first + text.generation.length <= length:
            text = self._texts[slot] = Text(owner, first, Generation(NO_SECTIONS, LOOPS_ONLY, ()))
        known = text.first + text.generation.length
        if known < length:
            text.generation.extend(tokens[known - first : length - first])
            self.found.update(text.generation.count())

    def log(self) -> None:
        """Log what was found, once a minute."""
        if time.monotonic() - self._logged > _LOG_SECONDS:
            self._logged = time.monotonic()
            _LOGGER.info("loops seen: %d, left again: %d", self.found["lz_loops_seen"], self.found["lz_loops_left"])


class V1Loops:
    """Counts loops in the outputs of the V1 runner's batch, which are on the host."""

    def __init__(self, state: Any) -> None:
        self.counts = LoopCounts()
        self._state = state
        self._steps = 0

    def step(self, batch_changes: bool) -> None:
        """Look at the outputs every `EVERY` steps, and before requests leave."""
        self._steps += 1
        if batch_changes or self._steps % EVERY == 0:
            for slot, output in self._state.outputs_without_counts():
                known = len(output) - (bool(output) and output[-1] < 0)  # the last may still be a placeholder
                self.counts.look(slot, output, known, output)
            self.counts.log()


class V2Loops:
    """Counts loops in the outputs of the V2 runner, which are on the device: asks for them, and looks `EVERY` steps later.

    Args:
        states: vLLM's request states, read only.
        drafts: the most draft tokens that a request can have in a step.
        counted: the slots that this process counts.
    """

    def __init__(self, states: Any, drafts: int, counted: range) -> None:
        self.counts = LoopCounts()
        self._states = states
        self._counted = counted
        self._width = 2 * EVERY * (1 + drafts)  # more tokens than come between two looks
        self._owners = [object() for _ in range(states.max_num_reqs)]
        self._steps = 0
        self._asked: list[tuple[Any, ...]] = []  # of the last step that asked; several if vLLM divided its batch
        self._asked_in = 0  # the number of that step

    def begin_step(self) -> None:
        """Count a step. vLLM may divide its batch, and call `look` for each part."""
        self._steps += 1

    def add_request(self, slot: int) -> None:
        """Note that another request takes this slot."""
        self._owners[slot] = object()

    def look(self, ctx: Any, wanted: np.ndarray) -> None:
        """Every `EVERY` steps, look at what was asked for last time, and ask again.

        Args:
            ctx: the layout of the step or of a part of it, from vLLM.
            wanted: of every slot, whether its request is to be counted.
        """
        if self._steps % EVERY:
            return
        if self._asked_in != self._steps:
            for asked in self._asked:
                self._look(*asked)
            self._asked, self._asked_in = [], self._steps
        texts = Later(newest_tokens(self._states, ctx.idx_mapping.long(), self._width))
        rows = [
            (row, slot, self._owners[slot])
            for row, slot in enumerate(ctx.idx_mapping_np.tolist())
            if wanted[slot] and slot in self._counted
        ]
        prompts = self._states.prompt_len.np[ctx.idx_mapping_np].tolist()
        self._asked.append((texts, rows, prompts))

    def _look(self, texts: Later, rows: list[tuple[int, int, object]], prompts: list[int]) -> None:
        lines = texts.get().tolist()  # it was there long ago
        for row, slot, owner in rows:
            length = lines[row][0] - prompts[row]
            first = max(0, length - self._width)
            self.counts.look(slot, owner, max(0, length), lines[row][1 + self._width - (length - first) :], first)
        self.counts.log()
