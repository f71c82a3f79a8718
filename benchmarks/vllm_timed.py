"""The vLLM plug-in with a stopwatch around its calls, for benchmarks/vllm_engine.py; runs in the engine's process."""

from __future__ import annotations

import json
import os
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from lz_penalty.engines.vllm import LZPenaltyLogitsProcessor

TIMES = "LZ_PENALTY_BENCHMARK_TIMES"  # the file to write, as an environment variable


class TimedProcessor(LZPenaltyLogitsProcessor):
    """Writes the host time of each step in nanoseconds, and whether the batch had changed, once a batch is done."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._path = Path(os.environ[TIMES])
        self._steps: list[tuple[int, bool]] = []
        self._update_time = 0
        self._changed = False

    def update_state(self, batch_update: Any) -> None:
        """The plug-in's own, timed."""
        begin = perf_counter_ns()
        super().update_state(batch_update)
        self._update_time = perf_counter_ns() - begin
        self._changed = batch_update is not None
        if batch_update is not None and batch_update.removed and self._steps:
            self._path.write_text(json.dumps(self._steps), encoding="utf-8")
            self._steps = []

    def apply(self, logits: Any, ctx: Any = None) -> Any:
        """The plug-in's own, timed."""
        begin = perf_counter_ns()
        logits = super().apply(logits, ctx)
        self._steps.append((perf_counter_ns() - begin + self._update_time, self._changed))
        self._update_time, self._changed = 0, False
        return logits
