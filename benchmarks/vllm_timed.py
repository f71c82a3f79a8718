"""The vLLM processor with a stopwatch, for `benchmarks.vllm_engine`. It runs in the engine's process.

A row of `notes` contains: when the step's processors began and how long the plug-in took on the host, in nanoseconds; whether
the batch had changed; whether the plug-in was left out. The plug-in's time is that of `update_state`, of `apply`, and of the
method with which vLLM completes its lists, which the plug-in replaces. If vLLM waits in this method, the wait counts. The
settings in the first row are the size of a block, or 0, and whether this method is left out at every step.

In a block without the plug-in, vLLM does not complete its lists either, as in an engine without a processor. `Skipped` does
that when the next block begins, before the plug-in sees the lists.

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

WAITS = "update_async_output_token_ids"  # vLLM's method that writes the newest tokens into its lists
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


class Skipped:
    """The tokens of the steps in which vLLM's lists were not completed. The batch must be the same in all of them."""

    def __init__(self) -> None:
        self._lists: list[tuple[list[int], int]] = []
        self._ids: list[Any] = []

    def note(self, batch: Any) -> None:
        """Note the tokens of the previous step, for which each list has a placeholder at its end."""
        if not self._ids:
            self._lists = [(one, len(one) - 1) for one in batch.req_output_token_ids]
        self._ids.append(batch.sampled_token_ids_cpu)

    def complete(self) -> None:
        """Write the tokens into the lists. All have arrived: a later step has been launched."""
        for later, ids in enumerate(self._ids):
            for (one, place), token in zip(self._lists, ids.flatten().tolist(), strict=True):
                if place + later < len(one) and one[place + later] == -1:
                    one[place + later] = token
        self._ids.clear()


class TimedProcessor(LZPenaltyLogitsProcessor):
    """A processor that notes the host time of every step. With blocks, it does nothing in every second block of steps."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._notes = notes(Path(os.environ[FILE]), "r+")
        self._took = 0  # nanoseconds in this step
        self._changed = False
        self._since = 0  # steps since the batch changed
        self._leaves_out = False
        self._skipped = Skipped()
        self._replace_the_method()

    def _replace_the_method(self) -> None:
        from vllm.v1.worker.gpu_input_batch import InputBatch

        method, settings = getattr(InputBatch, WAITS), self._notes[0]

        def timed(batch: Any) -> None:
            if self._leaves_out:
                if batch.sampled_token_ids_cpu is not None:
                    self._skipped.note(batch)
                return
            self._skipped.complete()
            begin = perf_counter_ns()
            if not settings[2]:
                method(batch)
            self._took += perf_counter_ns() - begin

        setattr(InputBatch, WAITS, timed)

    def update_state(self, batch_update: Any) -> None:
        """Update the state, and note the time."""
        if batch_update is not None:
            self._skipped.complete()
        begin = perf_counter_ns()
        super().update_state(batch_update)
        self._took = perf_counter_ns() - begin
        self._changed = batch_update is not None
        self._since = 0 if self._changed else self._since + 1
        block = int(self._notes[0, 1])
        self._leaves_out = block > 0 and self._since // block % 2 == 1

    def apply(self, logits: Any, ctx: Any = None) -> Any:
        """Apply the penalty, unless this block leaves it out, and note the time."""
        count = int(self._notes[0, 0]) + 1
        begin = perf_counter_ns()
        if not self._leaves_out:
            logits = super().apply(logits, ctx)
        took = perf_counter_ns() - begin
        self._notes[count] = begin, took + self._took, self._changed, self._leaves_out
        self._notes[0, 0] = count
        return logits
