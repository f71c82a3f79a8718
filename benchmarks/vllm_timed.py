"""The vLLM processor with a stopwatch, for `benchmarks.vllm_engine`. It runs in the engine's process.

A row of `notes` contains: when the step's processors began and how long they took on the host, in nanoseconds; whether the
batch had changed; whether the penalty was left out. The settings in the first row are the size of a block, or 0, and whether
vLLM must not wait for the newest tokens.

A row of `stages` contains how long each of `STAGES` took on the host in one step, in nanoseconds, and before them when the
step began. The first row contains the number of steps.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np

from benchmarks.engine_runs import FILE, STEPS, notes
from lz_penalty.engines.vllm import LZPenaltyLogitsProcessor

WAITS = "update_async_output_token_ids"  # vLLM's method that waits for the newest tokens and writes them into its lists
STAGE_FILE = "LZ_PENALTY_BENCHMARK_STAGES"  # environment variable with the path of `stages`
# Methods of the model runner in the order of a step, and within `_sample` the wait. `execute_model` contains those before
# `sample_tokens`, which contains the rest.
STAGES = (
    "execute_model",
    "_update_states",
    "_prepare_inputs",
    "_model_forward",
    "sample_tokens",
    "_sample",
    WAITS,
    "_bookkeeping_sync",
)


def stages(path: Path, mode: Any) -> np.ndarray:
    """Map the file of the stages that this process shares with an engine's process."""
    return np.memmap(path, np.int64, mode, shape=(STEPS // 10, 1 + len(STAGES)))


class Stopwatch:
    """What vLLM adds to its worker class (`worker_extension_cls`), so that `watch_stages` can be called there."""

    def watch_stages(self) -> None:
        """From now on, note how long each of `STAGES` takes."""
        runner = self.model_runner  # type: ignore[attr-defined]
        table = stages(Path(os.environ[STAGE_FILE]), "r+")
        for column, name in enumerate(STAGES, 1):
            owner = type(runner.input_batch if name == WAITS else runner)
            setattr(owner, name, _timed(getattr(owner, name), table, column))


def _timed(method: Callable[..., Any], table: np.ndarray, column: int) -> Callable[..., Any]:
    def timed(*given: Any, **named: Any) -> Any:
        begin = perf_counter_ns()
        if column == 1:
            table[0, 0] += 1
            table[table[0, 0], 0] = begin
        result = method(*given, **named)
        table[table[0, 0], column] += perf_counter_ns() - begin
        return result

    return timed


class TimedProcessor(LZPenaltyLogitsProcessor):
    """A processor that notes the host time of every step. With blocks, it skips every second block of steps."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._notes = notes(Path(os.environ[FILE]), "r+")
        self._in_update = 0
        self._changed = False
        self._since = 0  # steps since the batch changed
        self._make_the_wait_optional()

    def _make_the_wait_optional(self) -> None:
        from vllm.v1.worker.gpu_input_batch import InputBatch

        wait, settings = getattr(InputBatch, WAITS), self._notes[0]

        def wait_unless_told(batch: Any) -> None:
            if not settings[2]:
                wait(batch)

        setattr(InputBatch, WAITS, wait_unless_told)

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
