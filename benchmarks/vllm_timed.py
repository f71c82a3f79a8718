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
OFF, ON, CHANGED = range(3)  # what a step was: without the penalty, with it, or the batch had changed


def notes(path: Path, mode: Any) -> np.ndarray:
    """A file shared between the processes.

    Line 0: the number of steps so far; how many steps the penalty is on, and then off, in turn (0: always on). Then a line
    per step: its host time in nanoseconds, and what it was.
    """
    return np.memmap(path, np.int64, mode, shape=(STEPS, 2))


class TimedProcessor(LZPenaltyLogitsProcessor):
    """Notes the host time of every step; switches the penalty on and off in turn if it is told to."""

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
        """The plug-in's own, timed; or nothing."""
        count, turn = int(self._notes[0, 0]) + 1, int(self._notes[0, 1])
        on = not turn or count // turn % 2 == 0
        begin = perf_counter_ns()
        if on:
            logits = super().apply(logits, ctx)
        self._notes[count] = (
            perf_counter_ns() - begin + self._in_update,
            CHANGED if self._changed else ON if on else OFF,
        )
        self._notes[0, 0] = count
        return logits
