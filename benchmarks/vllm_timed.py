"""The vLLM plug-in with a stopwatch around its calls, for benchmarks/vllm_engine.py; runs in the engine's process."""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np

from lz_penalty.engines.vllm import LZPenaltyLogitsProcessor

FILE = "LZ_PENALTY_BENCHMARK_FILE"  # that both processes map, as an environment variable
STEPS = 1_000_000


def notes(path: Path, mode: Any) -> np.ndarray:
    """A file shared between the processes: the number of steps so far and the size of a block; then a line per step.

    A line: when the step's processors began and how long they took on the host, in nanoseconds; whether the batch had
    changed; whether the penalty was left out.
    """
    return np.memmap(path, np.int64, mode, shape=(STEPS, 4))


class TimedProcessor(LZPenaltyLogitsProcessor):
    """Notes the host time of every step. With blocks, it does nothing in every second block of steps."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._notes = notes(Path(os.environ[FILE]), "r+")
        self._in_update = 0
        self._changed = False
        self._since = 0  # steps since the batch changed

    def update_state(self, batch_update: Any) -> None:
        """The plug-in's own, timed."""
        begin = perf_counter_ns()
        super().update_state(batch_update)
        self._in_update = perf_counter_ns() - begin
        self._changed = batch_update is not None

    def apply(self, logits: Any, ctx: Any = None) -> Any:
        """The plug-in's own, timed."""
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
