"""Measure the guard: false cuts on the labelled set, and its cost beside a plain proxy. Writes results/guard.json.

The plain proxy is Starlette and httpx without any examination. Both proxies are processes of their own, and the same
client asks them in turns, so that other load on the machine meets both. `python -m benchmarks.guard`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from benchmarks.workload import ROOT, arguments, machine, write_json
from lz_penalty.guard import Thresholds
from lz_penalty.guard._events import Splitter
from lz_penalty.guard._followed import Followed
from lz_penalty.guard._stream import Stream
from lz_penalty.guard._watch import Part, TandemWatch, examine
from research.labelled import build
from tests.support.fake_upstream import chat_chunk, words
from tests.support.guarding import free_port, wait_for

FRESH = range(20_000, 28_000, 1_000)  # no threshold was chosen on these
ROUNDS, EVENTS, PAUSE = 60, 100, 0.002
PATH = "/v1/chat/completions"


def main() -> None:
    """Measure and write the results."""
    if len(sys.argv) > 1 and sys.argv[1] in ("plain", "source"):
        serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0)
        return
    path = arguments(__doc__, "guard.json").out
    fresh = [document for first in FRESH for document in build.generated(first)]
    result = {"machine": machine(), "thresholds": vars(Thresholds())}
    result["rates"] = {"labelled": rates(build.read()), "fresh": rates(fresh)}
    result["examination"] = examination()
    result["proxies"] = asyncio.run(proxies())
    write_json(path, result)


def rates(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """Count the texts that would be cut as streams, and those that would be cut back as whole answers."""
    found: dict[str, Any] = {"texts": Counter(), "stream": Counter(), "whole": Counter(), "which": []}
    for document in documents:
        kind = document["kind"] or document["label"]
        found["texts"][kind] += 1
        verdict = TandemWatch(Thresholds()).feed(document["text"])
        found["stream"][kind] += verdict is not None
        found["whole"][kind] += examine(Part(0, "content", 0, document["text"]), Thresholds()) is not None
        if verdict is not None and kind == "legitimate":
            found["which"].append(document["id"])
    return found


def examination() -> dict[str, float]:
    """Microseconds that the guard takes for one event, and those of splitting alone, in this process."""
    events = [chat_chunk({"content": text}) for seed in range(40) for text in words(seed, 500)]
    times = []
    for begin in range(0, len(events), 2_000):
        stream = Stream(Followed("chat", Thresholds()), 65_536)
        for event in events[begin : begin + 2_000]:
            start = time.perf_counter()
            stream.feed(event)
            times.append(1e6 * (time.perf_counter() - start))
    splitter = Splitter(65_536)
    start = time.perf_counter()
    for event in events:
        list(splitter.feed(event))
    split = 1e6 * (time.perf_counter() - start) / len(events)
    low, high = np.percentile(times, (50, 99))
    return {"events": len(times), "us": round(low, 1), "p99": round(high, 1), "splitting": round(split, 1)}


async def proxies() -> dict[str, Any]:
    """Milliseconds to the first byte and of each event, through each proxy."""
    source, plain, guard = free_port(), free_port(), free_port()
    commands = (
        ("benchmarks.guard", "source", source),
        ("benchmarks.guard", "plain", plain, source),
        ("lz_penalty", "guard", "--upstream", f"http://127.0.0.1:{source}", "--port", guard),
    )
    first: dict[str, list[float]] = {"plain": [], "guard": []}
    later: dict[str, list[float]] = {"plain": [], "guard": []}
    with contextlib.ExitStack() as stack:
        for command in commands:
            stack.enter_context(running(*command))
        for port in (source, plain, guard):
            wait_for(port, 120)
        for turn in range(ROUNDS + 4):
            for name, port in (("plain", plain), ("guard", guard))[:: 1 if turn % 2 else -1]:
                begin, events = await asked(port)
                if turn >= 4:  # the first requests open connections and compile
                    first[name].append(begin)
                    later[name] += events
    return {
        "rounds": ROUNDS,
        "events": EVENTS,
        **{
            name: {
                "first_ms": [round(float(one), 3) for one in np.percentile(first[name], (50, 99))],
                "event_ms": [round(float(one), 3) for one in np.percentile(later[name], (50, 99))],
            }
            for name in first
        },
    }


async def asked(port: int) -> tuple[float, list[float]]:
    """Return milliseconds to the first byte, and from sending to receiving each event."""
    times = []
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        start = time.monotonic()
        async with client.stream("POST", f"http://127.0.0.1:{port}{PATH}", json={"stream": True}) as reply:
            begin = None
            async for chunk in reply.aiter_raw():
                now = time.monotonic()
                begin = begin or now - start
                for line in chunk.splitlines():
                    if line.startswith(b"data: {"):
                        times.append(1e3 * (now - json.loads(line[6:])["sent"]))
    return 1e3 * (begin or 0), times


@contextlib.contextmanager
def running(*command: object) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-m", *map(str, command)], cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def serve(what: str, port: int, target: int) -> None:
    """Serve the plain proxy, or the source of timed events."""
    client = httpx.AsyncClient(trust_env=False, timeout=60)

    async def source(_: Request) -> StreamingResponse:
        async def events() -> AsyncIterator[bytes]:
            for text in words(0, EVENTS):
                yield chat_chunk({"content": text}, sent=time.monotonic())
                await asyncio.sleep(PAUSE)

        return StreamingResponse(events(), media_type="text/event-stream")

    async def plain(request: Request) -> StreamingResponse:
        body = await request.body()
        asked = client.build_request("POST", f"http://127.0.0.1:{target}{PATH}", content=body)
        reply = await client.send(asked, stream=True)
        return StreamingResponse(reply.aiter_raw(), media_type="text/event-stream")

    app = Starlette(routes=[Route(PATH, {"source": source, "plain": plain}[what], methods=["POST"])])
    uvicorn.run(app, port=port, log_level="error", loop="asyncio", http="h11")


if __name__ == "__main__":
    main()
