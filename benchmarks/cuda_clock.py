"""Clocks for `benchmarks.gpu`: device time under a CUDA graph, time of an eager call, and host time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

Call = Callable[[], object]
GRAPH_US = 5000  # a graph contains about as many calls as take this long eagerly
MOST_CALLS = 99


def graph_times(calls: Sequence[Call], seconds: float = 0.04) -> list[float]:
    """Return microseconds per call: `calls` in turn, captured in one CUDA graph that is replayed between two events.

    All calls are captured on one stream, so that each begins after the call before it has ended.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()  # compile and copy settings
        once = _eager_us(calls[0])
        rounds = max(1, int(min(MOST_CALLS, GRAPH_US / once)) // len(calls))
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()  # not `torch.cuda.graph`: its garbage collection would take longer than the measurement
        try:
            for _ in range(rounds):
                for call in calls:
                    call()
        finally:
            graph.capture_end()
        graph.replay()
        first = _replay_us(graph)
        replays = int(max(5, min(25, seconds * 1e6 / first)))
        samples = [_replay_us(graph) / (rounds * len(calls)) for _ in range(replays)]
        stream.synchronize()
    return samples


def eager_times(call: Call, seconds: float = 0.4, most: int = 20) -> list[float]:
    """Return microseconds of single calls as the host sees them, including the device's work."""
    samples = [_eager_us(call)]
    if samples[0] > seconds * 1e6:
        return samples
    samples = []
    end = time.perf_counter() + seconds
    while len(samples) < most and (time.perf_counter() < end or not samples):
        samples.append(_eager_us(call))
    return samples


def host_times(call: Call, samples: int = 30, calls: int = 20) -> list[float]:
    """Return the microseconds of host time per call, without waiting for the device."""
    found = []
    call()
    for _ in range(samples):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        found.append((time.perf_counter() - began) / calls * 1e6)
    torch.cuda.synchronize()
    return found


def synchronises(call: Call) -> str | None:
    """Return torch's message about how a call waits for the device, or `None` if it does not wait. The call must be warm."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            call()
    except RuntimeError as error:
        if "synchroniz" not in str(error):
            raise
        return str(error).splitlines()[0]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return None


def warm_up(device: str, seconds: float = 0.5) -> None:
    """Keep the device busy until its clock speed is up."""
    matrix = torch.randn(4096, 4096, device=device)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for _ in range(10):
            matrix @ matrix
        torch.cuda.synchronize()


def _eager_us(call: Call) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) * 1e6


def _replay_us(graph: torch.cuda.CUDAGraph) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3
