"""Measure the op's time on a CUDA device: `python -m benchmarks.gpu --out DIR` (about two minutes).

Times are device times of consecutive calls under a CUDA graph: "hot" calls use one logits buffer, "cold" calls three in
turn. Calls that wait for the device cannot be captured; they are timed eagerly, and their results say so.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks import baselines, cuda_kernels
from benchmarks import cuda_clock as clock
from benchmarks.correctness import check_backend
from benchmarks.gpu_shapes import axis_shapes, corner_shapes, kinds, main_shapes, printed_shapes
from benchmarks.workload import (
    BATCHES,
    MAIN_WINDOW,
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
from lz_penalty import PackedConfig, apply_lz_penalty_, pack_configs

HOT, COLD, TORCH = "ours (hot)", "ours (cold)", "ours: torch"
ADD_HOT, ADD_COLD = "add_ (hot)", "add_ (cold)"
EMPTY, DRY, DEVICE_DRY, DENSE = "empty kernel", "DRY", "DRY, all rows at once", "dense paper"
COLUMNS = [HOT, COLD, ADD_HOT, ADD_COLD, TORCH, *baselines.TRANSFORMERS, DRY, DEVICE_DRY, DENSE]
DENSE_LIMIT_GB = 60
BUFFERS = 3
FLUSH_BYTES = 256 * 2**20  # larger than the device's cache
Call = Callable[[], object]


# ---------------------------------------------------------------- arrays on the device


class Arena:
    """Logits and histories on the device, made once for the largest batch and sliced for smaller ones."""

    def __init__(self, device: str, largest: int = BATCHES[-1]):
        self.device, self.largest = device, largest
        self._logits: dict[int, list[Tensor]] = {}
        self._histories: dict[tuple, Tensor] = {}
        self._packed: dict[tuple, PackedConfig] = {}

    def logits(self, shape: Shape) -> list[Tensor]:
        """Return three buffers `[batch, vocab]`, filled with new values."""
        if shape.vocab not in self._logits:
            size = (self.largest, shape.vocab)
            self._logits[shape.vocab] = [torch.empty(size, device=self.device) for _ in range(BUFFERS)]
        return [buffer[: shape.batch].normal_() for buffer in self._logits[shape.vocab]]

    def token_ids(self, shape: Shape) -> Tensor:
        """Return histories `[batch, capacity]`, int64."""
        key = (shape.rows, shape.length, shape.vocab)
        if key not in self._histories:
            ids = padded(histories(shape.rows, self.largest, shape.length, shape.vocab))
            self._histories[key] = torch.from_numpy(ids).to(self.device)
        return self._histories[key][: shape.batch]

    def packed(self, shape: Shape) -> PackedConfig:
        """Return the packed settings, as an engine keeps them."""
        key = (shape.preset, shape.window)
        if key not in self._packed:
            self._packed[key] = pack_configs(shape.config, None if self.device == "cpu" else self.device)
        return self._packed[key]

    def forget_histories(self) -> None:
        """Free the memory of the histories."""
        self._histories.clear()
        if self.device != "cpu":
            torch.cuda.empty_cache()


def our_calls(
    arena: Arena, shape: Shape, backend: str, *, packed: bool = True, dtype=torch.float32, token_dtype=torch.int64
) -> list[Call]:
    """Return a call of the op for each logits buffer, with packed settings and lengths, as engines call it."""
    token_ids, config = arena.token_ids(shape).to(token_dtype), arena.packed(shape) if packed else shape.config
    lengths = torch.full((shape.batch,), shape.length, device=arena.device)
    starts = None if shape.config.include_prompt else torch.zeros_like(lengths)

    def bind(logits: Tensor) -> Call:
        return lambda: apply_lz_penalty_(logits, token_ids, lengths, config=config, starts=starts, backend=backend)

    return [bind(logits.to(dtype)) for logits in arena.logits(shape)]


# ---------------------------------------------------------------- sections of the run


def check(report: Report, device: str, seconds: float = 25.0) -> list[str]:
    """Return the backends that pass the checks; only these are timed."""
    wrong = baselines.problems() + cuda_kernels.problems(device)
    if not report.check("baselines are right", not wrong, ", ".join(wrong[:3]) or "each equals its definition"):
        return []
    shares = {"triton": 0.7 * seconds, "torch": 0.3 * seconds}
    return [name for name, share in shares.items() if check_backend(report, name, torch, device, seconds=share)]


def check_syncs(report: Report, arena: Arena, backends: list[str]) -> None:
    """Check that calls do not wait for the device, and that the check notices a call that does."""
    control = clock.synchronises(lambda: torch.ones(1, device=arena.device).item())
    report.check("the check for waiting can fail", control is not None, control or "an .item() went unnoticed")
    for backend in backends:
        found = None
        for preset in PRESETS:
            for window in (MAIN_WINDOW, WINDOWS[1]):
                for packed in (True, False):
                    call = our_calls(arena, Shape(8, window, preset=preset, rows="half"), backend, packed=packed)[0]
                    call()
                    found = found or clock.synchronises(call)
        report.check(f"{backend} never waits for the device", found is None, found or "every preset, windows 512, 4096")


def measure_ours(report: Report, arena: Arena, shapes: Iterable[Shape], end: float) -> int:
    """Time the Triton backend on these shapes until the time is up; return how many were left out."""
    left_out = 0
    for number, shape in enumerate(shapes):
        if time.perf_counter() > end:
            left_out += 1
            continue
        calls = our_calls(arena, shape, "triton")
        report.add(HOT, shape, clock.graph_times(calls[:1]))
        report.add(COLD, shape, clock.graph_times(calls))
        if number % 20 == 19:
            report.save()
    report.save()
    return left_out


def measure_add(report: Report, arena: Arena) -> None:
    """Time one dense add per batch and vocabulary."""
    for vocab in VOCABS:
        for batch in BATCHES:
            shape = Shape(batch, vocab=vocab)
            logits = arena.logits(shape)
            bias = baselines.bias_like(logits[0])
            calls = [lambda buffer=buffer, bias=bias: buffer.add_(bias) for buffer in logits]
            report.add(ADD_HOT, shape, clock.graph_times(calls[:1]))
            report.add(ADD_COLD, shape, clock.graph_times(calls))


def measure_others(report: Report, arena: Arena, backends: list[str]) -> None:
    """Time the torch backend and the other penalties: every batch, and the long windows at batch 64."""
    shapes = [Shape(batch, rows=rows) for batch in BATCHES for rows in kinds(batch)]
    shapes += [Shape(64, window, rows="half") for window in WINDOWS[1:]]
    others = {**baselines.transformers_processors(), DRY: baselines.dry, DEVICE_DRY: baselines.device_dry()}
    for shape in shapes:
        history = arena.token_ids(shape)[:, : shape.length]
        if "torch" in backends:
            add_record(report, TORCH, shape, our_calls(arena, shape, "torch"))
        for name, call in others.items():
            buffers = arena.logits(shape)
            add_record(report, name, shape, [lambda c=call, h=history, b=b: c(h, b) for b in buffers])
        report.save()


def add_record(report: Report, name: str, shape: Shape, calls: list[Call]) -> None:
    """Time calls under a graph if they can be captured, and eagerly otherwise."""
    calls[0]()
    if clock.synchronises(calls[0]) is None:
        report.add(name, shape, clock.graph_times(calls))
    else:
        report.add(name, shape, clock.eager_times(calls[0]), how="eager: it waits for the device")


def measure_dense(report: Report, arena: Arena) -> None:
    """Time the dense paper penalty where it fits, eagerly: its calls are so long that a graph makes no difference."""
    shapes = [Shape(batch, rows=kinds(batch)[1]) for batch in BATCHES]
    shapes += [Shape(1, WINDOWS[1]), Shape(64, WINDOWS[2], rows="half")]
    for shape in shapes:
        dense = baselines.DensePaper(shape.config)
        gb = dense.needs_gb(shape.batch, shape.vocab)
        if gb > DENSE_LIMIT_GB:
            report.skip(DENSE, shape, f"needs {gb:,.0f} GB")
            continue
        history, logits = arena.token_ids(shape)[:, : shape.length], arena.logits(shape)[0]
        report.add(DENSE, shape, clock.eager_times(lambda d=dense, h=history, b=logits: d(h, b), most=5), how="eager")
        arena.forget_histories()
    report.save()


def measure_bounds(report: Report, arena: Arena) -> None:
    """Time the lower bounds of short windows (a launch) and of long windows (random access to logits)."""
    anything = torch.zeros(1, device=arena.device)
    note(report, EMPTY, Shape(), clock.graph_times([lambda: cuda_kernels.empty(anything)]))
    shape = Shape(64, WINDOWS[-1])
    ids, buffers = arena.token_ids(shape), arena.logits(shape)
    sums = torch.empty(shape.batch, cuda_kernels.chunks(shape.window), device=arena.device)
    gather = [lambda b=b: cuda_kernels.gather(b, ids, shape.window, sums) for b in buffers]
    lower = [lambda b=b: cuda_kernels.lower(b, ids, shape.window) for b in buffers]
    for name, calls in (("only gathering 64 x 32,768 random logits", gather), ("only lowering them", lower)):
        note(report, f"{name} (hot)", shape, clock.graph_times(calls[:1]))
        note(report, f"{name} (cold)", shape, clock.graph_times(calls))
    report.save()


def measure_variants(report: Report, arena: Arena, backends: list[str]) -> None:
    """Time other types, logits that are not in the cache, and the host."""
    for batch in (64, 256):
        shape = Shape(batch, rows="half")
        for name, types in (
            ("int32 ids", {"token_dtype": torch.int32}),
            ("bfloat16 logits", {"dtype": torch.bfloat16}),
        ):
            calls = our_calls(arena, shape, "triton", **types)
            note(report, f"{name}, batch {batch}", shape, clock.graph_times(calls))
        note(report, f"logits not in the cache, batch {batch}", shape, flushed(arena, shape))
    shape = Shape(64, rows="half")
    for backend in backends:
        for packed in (True, False):
            call = our_calls(arena, shape, backend, packed=packed)[0]
            name = f"host time of an eager {backend} call, {'packed settings' if packed else 'one config'}"
            note(report, name, shape, clock.host_times(call))
    report.save()


def flushed(arena: Arena, shape: Shape) -> list[float]:
    """Time calls after a write that is larger than the cache, and subtract the time of that write."""
    waste = torch.empty(FLUSH_BYTES // 4, device=arena.device)
    call = our_calls(arena, shape, "triton")[0]

    def both() -> None:
        waste.fill_(1.0)
        call()

    alone = float(np.median(clock.graph_times([lambda: waste.fill_(1.0)])))
    return [us - alone for us in clock.graph_times([both])]


def note(report: Report, name: str, shape: Shape, samples: list[float]) -> None:
    """Add a measurement outside the grid: a record, and a line under the table."""
    report.add(name, shape, samples)
    report.notes.append(f"{name}: {np.median(samples):.2f} us")


# ---------------------------------------------------------------- claims


def judge(report: Report) -> None:
    """Add the claims; the slower of hot and cold counts."""

    def worst(values: Iterable[float | None]) -> float | None:
        values = list(values)
        return None if None in values else max(values)

    def us(**shape) -> float | None:
        return worst(report.us(mode, Shape(**shape)) for mode in (HOT, COLD))

    def ratio(mode: str, one: Shape, other: Shape) -> float | None:
        top, bottom = report.us(mode, one), report.us(mode, other)
        return top / bottom if top and bottom else None

    for batch, limit in ((64, 4), (256, 8)):
        report.claim(f"batch {batch}, window 512, half the rows in a loop", limit, us(batch=batch, rows="half"), "us")
    for window in WINDOWS:
        pairs = [(Shape(b, window, rows="loop"), Shape(b, window, rows="random")) for b in BATCHES]
        found = worst(ratio(mode, *pair) for mode in (HOT, COLD) for pair in pairs)
        report.claim(f"rows in a loop against random rows, window {window:,}, any batch", 1.5, found, "times")
    for batch in (64, 256):
        shapes = [Shape(batch, vocab=vocab, rows="half") for vocab in VOCABS]
        found = worst(ratio(mode, one, other) for mode in (HOT, COLD) for one in shapes for other in shapes)
        report.claim(f"dearest against cheapest vocabulary, 32k to 256k, batch {batch}", 1.1, found, "times")
    report.claim("batch 64, window 32,768, half", 40, us(batch=64, window=32768, rows="half"), "us")
    for batch in (64, 256):
        pair = Shape(batch, preset="ungated", rows="half"), Shape(batch, rows="half")
        found = worst(ratio(mode, *pair) for mode in (HOT, COLD))
        report.claim(f"ungated (loop window 4,096) against paper, batch {batch}, half", 3, found, "times")


# ---------------------------------------------------------------- the run


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the results")
    parser.add_argument("--seconds", type=float, default=140.0, help="leave out the rest of the grid after this time")
    return parser.parse_args()


def describe(device: str) -> dict[str, object]:
    """Return name, memory and CUDA version of the device."""
    properties = torch.cuda.get_device_properties(device)
    memory = f"{properties.total_memory / 2**30:.0f} GiB"
    return {"gpu": properties.name, "gpu_memory": memory, "cuda": torch.version.cuda}


def file_name(gpu: str) -> str:
    """Return the name of the results file: "NVIDIA H200" gives "h200.json"."""
    model = re.search(r"[A-Z]+\d+\w*", gpu)
    return (model.group() if model else gpu.replace(" ", "_")).lower() + ".json"


def run(report: Report, device: str, end: float) -> list[Shape]:
    """Measure everything, the most important parts first; return the shapes of the printed table."""
    backends = check(report, device)
    arena = Arena(device)
    if "triton" in backends:
        check_syncs(report, arena, backends)
    for line in report.checks:
        print(f"{'ok' if line['ok'] else 'WRONG'}: {line['check']}: {line['detail']}", flush=True)
    report.save()
    if "triton" not in backends:
        return []
    clock.warm_up(device)
    left_out = measure_ours(report, arena, main_shapes(), end)
    left_out += measure_ours(report, arena, axis_shapes(), end)
    arena.forget_histories()
    measure_bounds(report, arena)
    measure_add(report, arena)
    measure_variants(report, arena, backends)
    measure_others(report, arena, backends)
    arena.forget_histories()
    measure_dense(report, arena)
    print(f"the corners of the grid begin {end - time.perf_counter():.0f} s before the end", flush=True)
    left_out += measure_ours(report, arena, corner_shapes(), end)
    if left_out:
        report.notes.append(f"{left_out} shapes were left out for lack of time.")
    return printed_shapes()


def main() -> int:
    """Check, measure, print, write."""
    given = arguments()
    if not torch.cuda.is_available():
        print("There is no CUDA device here; python -m benchmarks.cpu measures the CPU.")
        return 2
    about = describe("cuda:0")
    report = Report(given.out / file_name(str(about["gpu"])), machine(**about))
    with torch.no_grad():
        shapes = run(report, "cuda:0", time.perf_counter() + given.seconds)
    if not shapes:
        return 1
    judge(report)
    report.relate(ADD_HOT, {HOT, ADD_HOT})
    report.relate(ADD_COLD, set(COLUMNS) - {HOT, ADD_HOT})
    report.save()
    print_report(report, COLUMNS, shapes, f"The LZ penalty on {about['gpu']}", "the dense add_")
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
