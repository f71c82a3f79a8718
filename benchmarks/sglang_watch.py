"""A second SGLang plug-in for `benchmarks.sglang_engine`: a stopwatch in the scheduler, and a record of logits.

A row of `notes` contains: when the step's result was processed, in nanoseconds; how many requests decoded in the step (0 for
a prefill); how long the penalty occupied the scheduler's thread since the step before, in nanoseconds.
"""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np

from benchmarks.engine_runs import FILE, notes

LOGITS = "LZ_PENALTY_BENCHMARK_LOGITS"  # environment variable: the folder that every penalised step is written to


class _Watch:
    """A stopwatch that notes each step. It only reads the clock."""

    def __init__(self) -> None:
        self._notes = notes(Path(os.environ[FILE]), "r+")
        self._host = 0

    def processed(self, _: Any, scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> None:
        """Note a step, after `Scheduler.process_batch_result`. With overlap, that is one step late."""
        count = int(self._notes[0, 0]) + 1
        decoding = len(batch.reqs) if batch.forward_mode.is_decode() else 0
        self._notes[count, :3] = perf_counter_ns(), decoding, self._host
        self._notes[0, 0], self._host = count, 0

    def timed(self, function: Any) -> Any:
        """Return the function with its time counted as the penalty's."""

        def wrapped(*args: Any) -> Any:
            begin = perf_counter_ns()
            result = function(*args)
            self._host += perf_counter_ns() - begin
            return result

        return wrapped


def register() -> None:
    """Register the stopwatch; SGLang calls this in every process. The main process, without `FILE`, has no steps."""
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
