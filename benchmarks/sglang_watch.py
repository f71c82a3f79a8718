"""A second plug-in for benchmarks/sglang_engine.py, in SGLang's scheduler: stopwatch, and record of logits."""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np

FILE = "LZ_PENALTY_BENCHMARK_FILE"  # that both processes map, as an environment variable
LOGITS = "LZ_PENALTY_BENCHMARK_LOGITS"  # a folder: every penalised step is written there
STEPS = 200_000


def notes(path: Path, mode: Any) -> np.ndarray:
    """A file shared between the processes: the number of steps so far; then a line per step.

    A line: when the step's result was processed, in nanoseconds; how many requests decoded in it, 0 for a prefill; and how
    long the penalty kept the scheduler's thread since the step before.
    """
    return np.memmap(path, np.int64, mode, shape=(STEPS, 3))


class _Watch:
    """Notes each step; reading the clock is all it costs."""

    def __init__(self) -> None:
        self._notes = notes(Path(os.environ[FILE]), "r+")
        self._host = 0

    def processed(self, _: Any, scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> None:
        """After `Scheduler.process_batch_result`, which follows one step behind."""
        count = int(self._notes[0, 0]) + 1
        self._notes[count] = perf_counter_ns(), len(batch.reqs) if batch.forward_mode.is_decode() else 0, self._host
        self._notes[0, 0], self._host = count, 0

    def timed(self, function: Any) -> Any:
        """The function, its time counted as the penalty's."""

        def wrapped(*args: Any) -> Any:
            begin = perf_counter_ns()
            result = function(*args)
            self._host += perf_counter_ns() - begin
            return result

        return wrapped


def register() -> None:
    """Called by SGLang in every process; the main one has no steps."""
    if FILE not in os.environ:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from lz_penalty.engines.sglang._history import History

    watch = _Watch()
    HookRegistry.register(
        "sglang.srt.managers.scheduler.Scheduler.process_batch_result", watch.processed, HookType.AFTER
    )
    for name in ("load", "step", "apply"):
        setattr(History, name, watch.timed(getattr(History, name)))
    if LOGITS in os.environ:
        History.apply = _recorded(History.apply, Path(os.environ[LOGITS]))  # type: ignore[method-assign]


def _recorded(apply: Any, folder: Path) -> Any:
    def wrapped(self: Any, step: Any, logits: Any, batch: Any) -> None:
        before = logits.float().cpu().numpy().copy()
        apply(self, step, logits, batch)
        lengths = batch.seq_lens.cpu().numpy()
        tokens = self._tokens[batch.req_pool_indices, : int(lengths.max())].cpu().numpy()
        at = len(list(folder.iterdir()))
        np.savez(
            folder / f"{at}.npz", before=before, after=logits.float().cpu().numpy(), tokens=tokens, lengths=lengths
        )

    return wrapped
