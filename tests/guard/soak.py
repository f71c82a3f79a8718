"""Thousands of streams through one guard: no error, and flat memory. `make soak-guard`.

Healthy and looping streams, whole answers, broken ones, and clients that leave, 50 at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from pathlib import Path

import httpx
import psutil

from benchmarks.workload import machine
from tests.support.guarding import PATHS, fake_upstream, running

AT_ONCE = 50
MOST_GROWTH = 8  # MiB between the first and the last quarter


async def one(client: httpx.AsyncClient, guard, number: int, rng: random.Random) -> str:
    route, kind = list(PATHS)[number % 3], rng.random()
    how = {"seed": number % 50, "words": 30, "user": "soak"}
    user, more = how.pop("user"), {"prompt": "p"}
    if kind < 0.3:
        how["copies"] = 120
    do = "whole" if kind > 0.9 else "reset in stream" if 0.85 < kind <= 0.9 else "stream"
    body = guard.body(user, do=do, more=more, **how)
    try:
        async with client.stream("POST", PATHS[route], json=body) as reply:
            assert reply.status_code == 200
            async for _ in reply.aiter_raw():
                if 0.8 < kind <= 0.85:
                    return "left"
    except httpx.RemoteProtocolError:
        assert do == "reset in stream"
    return do


async def soak(guard, total: int) -> list[dict[str, float]]:
    rng, process, rows = random.Random(0), psutil.Process(guard.process.pid), []
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=guard.address, limits=limits, timeout=120, trust_env=False) as client:
        for done in range(0, total, AT_ONCE):
            await asyncio.gather(*(one(client, guard, done + i, rng) for i in range(AT_ONCE)))
            if done % (total // 20) < AT_ONCE:
                rows.append({"streams": done + AT_ONCE, "mib": round(process.memory_info().rss / 2**20, 1)})
    for _ in range(200):
        if guard.metric("lz_guard_open_requests") == 0:
            break
        time.sleep(0.05)
    assert guard.metric("lz_guard_open_requests") == 0
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, fake_upstream() as upstream, running(Path(folder), upstream) as guard:
        rows = asyncio.run(soak(guard, given.streams))
        loops = guard.metric("lz_guard_loops_total{")
        problems = [line for line in guard.lines() if line["level"] in ("error", "critical")]
    quarter = len(rows) // 4
    early, late = (max(row["mib"] for row in part) for part in (rows[: max(1, quarter)], rows[-max(1, quarter) :]))
    result = {"machine": machine(), "streams": given.streams, "loops_cut": loops, "memory": rows}
    result |= {
        "growth_mib": round(late - early, 1),
        "errors": len(problems),
        "seconds": round(time.monotonic() - begin),
    }
    print(json.dumps({name: value for name, value in result.items() if name not in ("machine", "memory")}))
    if given.out:
        given.out.write_text(json.dumps(result, indent=1) + "\n")
    assert not problems, problems[0]
    assert result["growth_mib"] < MOST_GROWTH, rows


if __name__ == "__main__":
    main()
