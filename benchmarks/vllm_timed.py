"""The vLLM processor with a stopwatch, for `benchmarks.vllm_engine`. It runs in the engine's process.

A row of `notes` contains: when the step's processors began and how long they took on the host, in nanoseconds; whether the
batch had changed; whether the penalty was left out. The setting in the first row is the size of a block, or 0.
"""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from benchmarks.engine_runs import FILE, notes
from lz_penalty.engines.vllm import LZPenaltyLogitsProcessor


class TimedProcessor(LZPenaltyLogitsProcessor):
    """A processor that notes the host time of every step. With blocks, it skips every second block of steps."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._notes = notes(Path(os.environ[FILE]), "r+")
        self._in_update = 0
        self._changed = False
        self._since = 0  # steps since the batch changed

    def update_state(self, batch_update: Any) -> None:
        """Update the state, and note the time."""
        begin = perf_counter_ns()
        super().update_state(batch_update)
        self._in_update = perf_counter_ns() - begin
        self._changed = batch_update is not None

    def apply(self, logits: Any, ctx: Any = None) -> Any:
        """Apply the penalty, unless this block leaves it out, and note the time."""
        count, block = int(self._notes[0, 0]) + 1, int(self._notes[0, 1])
        self._since = 0 if self._changed else self._since + 1
        left_out = block > 0 and self._since // block % 2 == 1
        begin = perf_counter_ns()
        if not left_out:
            logits = super().apply(logits, ctx)
        took = perf_counter_ns() - begin
        self._notes[count] = begin, took + self._in_update, self._changed, left_out
        self._notes[0, 0] = count
        return logits
