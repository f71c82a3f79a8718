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
    """A file shared between the processes: the number of steps so far; then a line per step.

    A line: the step's host time in nanoseconds, and whether the batch had changed.
    """
    return np.memmap(path, np.int64, mode, shape=(STEPS, 2))


class TimedProcessor(LZPenaltyLogitsProcessor):
    """Notes the host time of every step."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._notes = notes(Path(os.environ[FILE]), "r+")
        self._in_update = 0
        self._changed = False

    def update_state(self, batch_update: Any) -> None:
        """The plug-in's own, timed."""
        begin = perf_counter_ns()
        super().update_state(batch_update)
        self._in_update = perf_counter_ns() - begin
        self._changed = batch_update is not None

    def apply(self, logits: Any, ctx: Any = None) -> Any:
        """The plug-in's own, timed."""
        begin = perf_counter_ns()
        logits = super().apply(logits, ctx)
        took = perf_counter_ns() - begin
        count = int(self._notes[0, 0]) + 1
        self._notes[count] = took + self._in_update, self._changed
        self._notes[0, 0] = count
        return logits
