"""The vLLM plug-in with a stopwatch around its calls, for benchmarks/vllm_engine.py; runs in the engine's process."""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter_ns, thread_time_ns
from typing import Any

import numpy as np

from lz_penalty.engines.vllm import LZPenaltyLogitsProcessor

TIMES = "LZ_PENALTY_BENCHMARK_TIMES"  # the file that both processes map, as an environment variable
STEPS = 1_000_000


def times(path: Path, mode: Any) -> np.ndarray:
    """A file shared between the processes: in its first line the number of steps so far, then two times per step.

    By the clock, and of the processor (the engine's other threads take turns with this one); in nanoseconds, and
    negative where the batch had changed.
    """
    return np.memmap(path, np.int64, mode, shape=(STEPS, 2))


class TimedProcessor(LZPenaltyLogitsProcessor):
    """Notes the host time of every step."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._times = times(Path(os.environ[TIMES]), "r+")
        self._update_time = 0, 0
        self._sign = 1

    def update_state(self, batch_update: Any) -> None:
        """The plug-in's own, timed."""
        begin = _now()
        super().update_state(batch_update)
        self._update_time = _since(begin)
        self._sign = 1 if batch_update is None else -1

    def apply(self, logits: Any, ctx: Any = None) -> Any:
        """The plug-in's own, timed."""
        begin = _now()
        logits = super().apply(logits, ctx)
        clock, processor = _since(begin)
        count = int(self._times[0, 0]) + 1
        self._times[count, 0] = self._sign * (clock + self._update_time[0])
        self._times[count, 1] = self._sign * (processor + self._update_time[1])
        self._times[0, 0] = count
        self._update_time, self._sign = (0, 0), 1
        return logits


def _now() -> tuple[int, int]:
    return perf_counter_ns(), thread_time_ns()


def _since(begin: tuple[int, int]) -> tuple[int, int]:
    clock, processor = begin
    return perf_counter_ns() - clock, thread_time_ns() - processor
