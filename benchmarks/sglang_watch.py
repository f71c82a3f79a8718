"""A second plug-in for benchmarks/sglang_engine.py, in SGLang's scheduler: stopwatch, switch, and record of logits."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np

FILE = "LZ_PENALTY_BENCHMARK_FILE"  # that both processes map, as an environment variable
LOGITS = "LZ_PENALTY_BENCHMARK_LOGITS"  # a folder: every penalised step is written there
STEPS = 200_000


def notes(path: Path, mode: Any) -> np.ndarray:
    """A file shared between the processes.

    Line 0: the number of steps so far; how many steps the penalty is on, and then off, in turn (0: always on). Then a line
    per step: when its result was processed, in nanoseconds; how many requests decoded in it, 0 for a prefill; how long the
    penalty kept the scheduler's thread since the step before; and whether it was on.
    """
    return np.memmap(path, np.int64, mode, shape=(STEPS, 4))


class _Watch:
    """Notes each step; reading the clock is all it costs."""

    def __init__(self) -> None:
        self._notes = notes(Path(os.environ[FILE]), "r+")
        self._host = 0
        self._launched: deque[bool] = deque()  # decoding steps on the device: whether the penalty was on
        self._count = 0

    def processed(self, _: Any, scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> None:
        """After `Scheduler.process_batch_result`, which follows one step behind."""
        decode = batch.forward_mode.is_decode()
        on = self._launched.popleft() if decode and self._launched else False
        count = int(self._notes[0, 0]) + 1
        self._notes[count] = perf_counter_ns(), len(batch.reqs) if decode else 0, self._host, on
        self._notes[0, 0], self._host = count, 0

    def timed(self, function: Any) -> Any:
        """The function, its time counted as the penalty's."""

        def wrapped(*args: Any) -> Any:
            begin = perf_counter_ns()
            result = function(*args)
            self._host += perf_counter_ns() - begin
            return result

        return wrapped

    def in_turn(self, apply: Any) -> Any:
        """`History.apply`, on and off in turn if that is asked for."""

        def wrapped(history: Any, step: Any, logits: Any, batch: Any) -> None:
            turn, on = int(self._notes[0, 1]), True
            if batch.forward_mode.is_decode():
                self._count += 1
                on = not turn or self._count // turn % 2 == 0
                self._launched.append(on)
            if on:
                apply(history, step, logits, batch)

        return wrapped


def register() -> None:
    """Called by SGLang in every process; the main one has no steps."""
    if FILE not in os.environ:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from lz_penalty.engines.sglang.history import History

    watch = _Watch()
    HookRegistry.register(
        "sglang.srt.managers.scheduler.Scheduler.process_batch_result", watch.processed, HookType.AFTER
    )
    for name in ("load", "step", "apply"):
        setattr(History, name, watch.timed(getattr(History, name)))
    History.apply = watch.in_turn(History.apply)  # type: ignore[method-assign]
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
