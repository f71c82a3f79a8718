"""Counters on vLLM's metrics endpoint: requests by what they asked for, and loops met and broken.

Requests are counted where they arrive, in the process that serves the endpoint. Loops are counted in the worker, whose
counters that process shows if PROMETHEUS_MULTIPROC_DIR is set; the log has them in any case. Looking for them takes about
a microsecond per token, so it is off unless the server's settings ask for it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from prometheus_client import Counter
from vllm.logger import init_logger

from lz_penalty.detection import RepetitionDetector
from lz_penalty.engines._requests import fetch

__all__ = ["BatchReader", "LoopCounts", "SlotReader", "count_request"]

_LOGGER = init_logger("vllm.lz_penalty")  # so that vLLM shows it
EVERY = 32  # steps between two looks at the texts
_LOG_SECONDS = 60.0
_LOOP = {"min_copies": 3, "min_length": 30}

_REQUESTS = Counter("lz_penalty:requests", "Requests by what became of their lz_* settings.", ["settings"])
_MET = Counter("lz_penalty:loops_met", "Times that a unit stood three times in a row, over 30 tokens or more.")
_BROKEN = Counter("lz_penalty:loops_broken", "Loops met that the text left again.")


def count_request(outcome: str) -> None:
    """Count a request as "penalised" (also by a ladder alone, or in shadow mode), "none" or "refused"."""
    _REQUESTS.labels(outcome).inc()


class Text(NamedTuple):
    """What is known of one request's output: whose it is, how many tokens were taken, whether they end in a loop."""

    owner: Any
    detector: RepetitionDetector
    taken: int
    looping: bool


class LoopCounts:
    """Follows the outputs in all slots and counts the loops in them."""

    def __init__(self) -> None:
        self.met = self.broken = 0
        self._texts: dict[int, Text] = {}
        self._logged = time.monotonic()

    def look(self, slot: int, owner: Any, length: int, tokens: Sequence[int], first: int = 0) -> None:
        """Take what the output in this slot has gained.

        Args:
            slot: where the request is.
            owner: another object is another request.
            length: of the output.
            tokens: the output from its token number `first` on.
            first: see `tokens`.
        """
        text = self._texts.get(slot)
        if text is None or text.owner is not owner or not first <= text.taken <= length:
            text = Text(owner, RepetitionDetector(**_LOOP), first, False)
        looping = text.looping
        for token in tokens[text.taken - first : length - first]:
            found = text.detector.push(token)
            if looping and text.detector.current is None:
                looping, self.broken = False, self.broken + 1
                _BROKEN.inc()
            if found is not None and not looping:
                looping, self.met = True, self.met + 1
                _MET.inc()
        self._texts[slot] = text._replace(taken=length, looping=looping)

    def log(self) -> None:
        """Say how many there were, now and then."""
        if time.monotonic() - self._logged > _LOG_SECONDS:
            self._logged = time.monotonic()
            _LOGGER.info("loops met: %d, left again: %d", self.met, self.broken)


class BatchReader:
    """Reads the outputs of the V1 runner's batch, which lie on the host."""

    def __init__(self, state: Any) -> None:
        self.counts = LoopCounts()
        self._state = state
        self._steps = 0

    def step(self, batch_changes: bool) -> None:
        """Look every so often, and before requests leave."""
        self._steps += 1
        if batch_changes or self._steps % EVERY == 0:
            for slot, output in self._state.outputs():
                known = len(output) - (bool(output) and output[-1] < 0)  # the last may still be a placeholder
                self.counts.look(slot, output, known, output)
            self.counts.log()


class SlotReader:
    """Reads the outputs of the V2 runner, which are on the device: asked for now, looked at some steps later.

    Args:
        states: vLLM's request states, read only.
        drafts: the most draft tokens that a request can have in a step.
        counted: the slots that this process counts.
    """

    def __init__(self, states: Any, drafts: int, counted: range) -> None:
        self.counts = LoopCounts()
        self._states = states
        self._counted = counted
        self._width = 2 * EVERY * (1 + drafts)  # more than comes between two looks
        self._owners = [object() for _ in range(states.max_num_reqs)]
        self._steps = 0
        self._asked: tuple[Any, ...] | None = None

    def add_request(self, slot: int) -> None:
        """Another request takes this slot."""
        self._owners[slot] = object()

    def step(self, ctx: Any, penalised: np.ndarray) -> None:
        """Look at what was asked for last time, and ask for what has come since."""
        self._steps += 1
        if self._steps % EVERY:
            return
        if self._asked is not None:
            self._look(*self._asked)
        slots, states = ctx.idx_mapping.long(), self._states
        lengths = states.total_len.gpu[slots]
        place = lengths[:, None] - self._width + torch.arange(self._width, device=slots.device)
        tokens = states.all_token_ids.gpu[slots[:, None], place.clamp(min=0)]
        sent, done = fetch(torch.cat([lengths[:, None], tokens], dim=1))
        wanted = [
            (row, slot, self._owners[slot])
            for row, slot in enumerate(ctx.idx_mapping_np.tolist())
            if penalised[slot] and slot in self._counted
        ]
        prompts = states.prompt_len.np[ctx.idx_mapping_np].tolist()
        self._asked = sent, done, wanted, prompts

    def _look(self, sent: torch.Tensor, done: Any, wanted: list[tuple[int, int, object]], prompts: list[int]) -> None:
        if done is not None:
            done.synchronize()  # long past
        lines = sent.tolist()
        for row, slot, owner in wanted:
            length = lines[row][0] - prompts[row]
            first = max(0, length - self._width)
            self.counts.look(slot, owner, max(0, length), lines[row][1 + self._width - (length - first) :], first)
        self.counts.log()
