"""Measure the op's time on a CPU: `python -m benchmarks.cpu` (a few minutes), `--full` for the whole grid.

The contenders of a shape take turns on the same logits and histories, so that a busy machine slows all of them equally.
Each time is also given as a ratio to one dense `logits += bias` of that shape in the same run.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich.progress import track

from benchmarks import baselines
from benchmarks.correctness import check_backend
from benchmarks.workload import (
    BATCHES,
    MAIN_VOCAB,
    MAIN_WINDOW,
    PERIODS,
    PRESETS,
    RESULTS,
    VOCABS,
    WINDOWS,
    Report,
    Shape,
    histories,
    machine,
    padded,
    print_report,
)
from lz_penalty import apply_lz_penalty_, available_backends

ADD = "logits += bias"
OURS = {"numba": "ours: numba", "numpy": "ours: numpy", "torch": "ours: torch"}
DENSE, DRY = "dense paper", "DRY"
BASELINES = ["add_ (torch)", *baselines.TRANSFORMERS, DRY, DENSE]
SAMPLE_S = 3e-4  # a sample is as many calls as fit into these seconds, at least one
MAX_ROUNDS = 200
Call = Callable[[], object]


# ---------------------------------------------------------------- what is measured


def default_shapes() -> list[Shape]:
    """Return shapes that vary one axis around batch 1, window 512, vocabulary 152k; each preset with each kind of rows."""
    kinds = ("random", "loop")
    shapes = [Shape(rows=f"loop {period}") for period in PERIODS]
    shapes += [Shape(batch=batch, rows=rows) for batch in BATCHES for rows in kinds]
    shapes += [Shape(window=window, rows=rows) for window in WINDOWS for rows in kinds]
    shapes += [Shape(vocab=vocab, rows=rows) for vocab in VOCABS for rows in kinds]
    shapes += [Shape(preset=preset, batch=batch, rows=rows) for preset in PRESETS for batch in (1, 8) for rows in kinds]
    return in_order(shapes)


def full_shapes() -> list[Shape]:
    """Return the whole grid."""
    shapes = default_shapes() + [
        Shape(batch, window, vocab, preset, rows)
        for preset in PRESETS
        for window in WINDOWS
        for vocab in VOCABS
        for batch in BATCHES
        for rows in ("random", "loop")
        if preset != "failsafe" or window == MAIN_WINDOW  # it has no window
    ]
    return in_order(shapes)


def in_order(shapes: list[Shape]) -> list[Shape]:
    """Return each shape once, the paper's preset and the main window and vocabulary first."""

    def key(shape: Shape) -> tuple:
        off = (shape.window != MAIN_WINDOW, shape.vocab != MAIN_VOCAB)
        return PRESETS.index(shape.preset), *off, shape.window, shape.vocab, shape.batch, "loop" in shape.rows

    return sorted(dict.fromkeys(shapes), key=key)


class Bench:
    """The arrays of one shape, and the calls that are timed on them."""

    def __init__(self, shape: Shape):
        self.shape = shape
        rng = np.random.default_rng(1)
        self.original = rng.standard_normal((shape.batch, shape.vocab), dtype=np.float32)
        self.logits = self.original.copy()
        ids = histories(shape.rows, shape.batch, shape.length, shape.vocab)
        self.token_ids = padded(ids)
        self.lengths = np.full(shape.batch, shape.length)
        self.starts = np.zeros(shape.batch, dtype=np.int64) if not shape.config.include_prompt else None
        self.history = torch.from_numpy(self.token_ids)[:, : shape.length]

    def restore(self) -> None:
        """Restore the original logits."""
        np.copyto(self.logits, self.original)

    def ours(self, backend: str) -> Call:
        """Return a whole call of the op, checks included."""
        given = [self.logits, self.token_ids, self.lengths, self.starts]
        if backend == "torch":
            given = [None if array is None else torch.from_numpy(array) for array in given]
        logits, token_ids, lengths, starts = given
        config = self.shape.config

        def call() -> None:
            apply_lz_penalty_(logits, token_ids, lengths, config=config, starts=starts, backend=backend)

        return call

    def add(self) -> dict[str, Call]:
        """Return the dense add of NumPy and of torch."""
        logits = torch.from_numpy(self.logits)
        bias = baselines.bias_like(logits)
        ours, theirs = self.logits, bias.numpy()

        def numpy_add() -> None:
            nonlocal ours
            ours += theirs

        return {ADD: numpy_add, "add_ (torch)": lambda: logits.add_(bias)}

    def others(self) -> dict[str, Call]:
        """Return the other penalties, on the same history."""
        logits, history = torch.from_numpy(self.logits), self.history
        calls = {**baselines.transformers_processors(), DRY: baselines.dry}
        return {name: (lambda call=call: call(history, logits)) for name, call in calls.items()}

    def dense(self) -> Call:
        """Return the dense implementation of the paper's penalty."""
        logits, call = torch.from_numpy(self.logits), baselines.DensePaper(self.shape.config)
        return lambda: call(self.history, logits)


# ---------------------------------------------------------------- timing


def time_in_turns(calls: dict[str, Call], restore: Call, seconds: float) -> dict[str, list[float]]:
    """Return microseconds per call: samples of all calls in turn, until the time is used up."""
    inner = {}
    for name, call in calls.items():
        call()
        began = time.perf_counter()
        call()
        inner[name] = max(1, int(SAMPLE_S / (time.perf_counter() - began + 1e-9)))
    samples: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    for done in range(MAX_ROUNDS):
        if done >= 3 and time.perf_counter() > end:
            break
        for name, call in calls.items():
            restore()
            call()  # untimed, so that the caches are as this contender leaves them
            began = time.perf_counter()
            for _ in range(inner[name]):
                call()
            samples[name].append((time.perf_counter() - began) / inner[name] * 1e6)
    return samples


def measure(report: Report, shape: Shape, backends: list[str], *, seconds: float, memory_gb: float) -> None:
    """Time the contenders on one shape; the other penalties, which have no presets, only with the paper's preset."""
    needs = 3 * 4e-9 * shape.batch * shape.vocab + 2 * 8e-9 * shape.batch * shape.length
    if needs > memory_gb:
        report.skip(ADD, shape, f"needs {needs:.0f} GB")
        return
    bench = Bench(shape)
    calls = {**bench.add(), **{OURS[backend]: bench.ours(backend) for backend in backends}}
    work = 25 * 8e-9 * shape.batch * shape.length  # roughly what the torch backend allocates
    if work > memory_gb - needs and OURS["torch"] in calls:
        del calls[OURS["torch"]]
        report.skip(OURS["torch"], shape, f"needs {work:.0f} GB")
    if shape.preset == "paper":
        calls |= bench.others()
        gb = baselines.DensePaper(shape.config).needs_gb(shape.batch, shape.vocab)
        if gb > min(2.0, memory_gb - needs):
            report.skip(DENSE, shape, f"needs {gb:,.0f} GB")
        elif shape.rows in ("random", "loop"):
            calls[DENSE] = bench.dense()
    gc.collect()
    slow = {name: calls.pop(name) for name in (DENSE,) if name in calls}
    gc.disable()
    try:
        samples = time_in_turns(calls, bench.restore, seconds)
        samples |= time_in_turns(slow, bench.restore, 0.0)
    finally:
        gc.enable()
    for name, taken in samples.items():
        report.add(name, shape, taken)


# ---------------------------------------------------------------- memory


def check_allocations(report: Report, backends: list[str]) -> None:
    """Claim that no call allocates more for a larger vocabulary, and measure it in two ways.

    tracemalloc counts the memory of Python and NumPy. The address space, on Linux, also contains that of Numba and torch.
    """
    for backend in [name for name in backends if name != "torch"]:
        peaks = {vocab: traced_peak(backend, vocab) for vocab in (VOCABS[0], VOCABS[-1])}
        small, large = peaks[VOCABS[0]], peaks[VOCABS[-1]]
        what = f"{backend}: peak allocation of a call at vocabulary 256k, over that at 32k (tracemalloc)"
        report.claim(what, 1024, large - small, "bytes")
    if _address_space() is not None:
        for backend in backends:
            what = f"{backend}: address space that one call at vocabulary 67,108,864 adds (a byte each: 67 MB)"
            report.claim(what, 16, address_space_growth(backend), "MB")


def traced_peak(backend: str, vocab: int) -> int:
    """Return the peak bytes that a warm call allocates, over all presets, with random rows and rows in a loop."""
    peak = 0
    for preset in PRESETS:
        for rows in ("random", "loop 7"):
            call = Bench(Shape(vocab=vocab, preset=preset, rows=rows)).ours(backend)
            call()
            gc.collect()
            tracemalloc.start()
            call()
            peak = max(peak, tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    return peak


def address_space_growth(backend: str) -> float | None:
    """Return the megabytes by which one call raises the peak of the address space; `None` if an earlier peak hides it."""
    vocab = 2**26
    token_ids = histories("loop 7", 1, Shape().length, 1000)
    logits = np.empty((1, vocab), dtype=np.float32)
    given = (logits, token_ids) if backend != "torch" else (torch.from_numpy(logits), torch.from_numpy(token_ids))
    config = Shape().config
    apply_lz_penalty_(given[0][:, :1000], given[1], config=config, backend=backend)  # compiled, threads started
    size, peak = _address_space()
    if peak - size > vocab // 2:
        return None
    apply_lz_penalty_(*given, config=config, backend=backend)
    return (_address_space()[1] - peak) / 1e6


def _address_space() -> tuple[int, int] | None:
    """Return present size and peak in bytes; `None` if the system does not report them."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    found = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.startswith("Vm")}
    return (found["VmSize"], found["VmPeak"]) if {"VmSize", "VmPeak"} <= found.keys() else None


# ---------------------------------------------------------------- claims


def judge(report: Report) -> None:
    """Add the claims about one row, window 512, vocabulary 152k, Numba."""
    ours = OURS["numba"]

    def ratio(shape: Shape, other: str, base: Shape) -> float | None:
        top, bottom = report.us(ours, shape), report.us(other, base)
        return top / bottom if top and bottom else None

    loops = [Shape(rows=f"loop {period}") for period in PERIODS]
    for rows, shapes in (("random row", [Shape()]), ("row in a loop, worst of periods 1 to 50", loops)):
        found = [ratio(shape, ADD, shape) for shape in shapes]
        worst = None if None in found else max(found)
        report.claim(f"numba, one {rows}: whole call, in units of one {ADD}", 1.0, worst, "adds")
    for rows in ("random", "loop"):
        found = ratio(Shape(window=WINDOWS[-1], rows=rows), ours, Shape(rows=rows))
        report.claim(f"numba, one row, {rows}: window 32,768 in units of window 512", 64, found, "times")


# ---------------------------------------------------------------- the run


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="the whole grid of batches, windows, vocabularies, presets")
    parser.add_argument("--out", type=Path, default=RESULTS / "cpu.json", help="results file")
    parser.add_argument("--seconds", type=float, default=1.5, help="time per shape")
    parser.add_argument("--torch-threads", type=int, default=1, help="threads of torch; NumPy and Numba use one")
    parser.add_argument("--memory-gb", type=float, default=6.0, help="leave out shapes that need more memory")
    return parser.parse_args()


def main() -> int:
    """Check, measure, print, write."""
    given = arguments()
    torch.set_num_threads(given.torch_threads)
    report = Report(given.out, machine(torch_threads=given.torch_threads))
    wrong = baselines.problems()
    report.check(
        "baselines are right", not wrong, wrong[0] if wrong else "dense paper penalty and DRY equal their definitions"
    )
    reasons = available_backends()
    backends = []
    for name, library in (("numba", np), ("numpy", np), ("torch", torch)):
        if reasons[name]:
            report.notes.append(f"{name}: {reasons[name]}")
        elif check_backend(report, name, library):
            backends.append(name)
    for check in report.checks:
        print(f"{'ok' if check['ok'] else 'WRONG'}: {check['check']}: {check['detail']}")
    if wrong:
        return 1

    check_allocations(report, backends)
    shapes = full_shapes() if given.full else default_shapes()
    with torch.no_grad():
        for shape in track(shapes, description="timing", transient=True):
            measure(report, shape, backends, seconds=given.seconds, memory_gb=given.memory_gb)
            report.relate(ADD)
            report.save()
    judge(report)
    report.save()
    columns = [ADD, *OURS.values(), *BASELINES]
    print_report(report, columns, shapes, "The LZ penalty on the CPU", ADD)
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
