"""Streams of a real server through the guard, with a recorder between them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from lz_penalty import bundled_model
from lz_penalty.guard import Thresholds
from lz_penalty.guard._watch import TandemWatch
from tests.support import ROOT
from tests.support.guarding import events, free_port, wait_for

EARLY = Thresholds(min_length=120, min_length_data=120)  # the bundled model's loops have short units
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT)))}


@contextlib.contextmanager
def started(*command: object) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-m", *map(str, command)], cwd=ROOT, env=ENVIRONMENT)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def check_streams(
    address: str, model: str, count: int, folder: Path, *, at_once: int = 1_000, **fields: Any
) -> dict[str, int]:
    """Send `count` streams with these fields through guard and recorder, and compare each with what the server sent.

    Healthy streams must be equal byte for byte, and looping ones must be cut within the event at which the loop counts.
    """
    recorder, guard = free_port(), free_port()
    target = address.rpartition(":")[2]
    limits = ("--min-length", EARLY.min_length, "--min-length-data", EARLY.min_length_data, "--max-connections", 2_000)
    with started("tests.support.recorder", recorder, target):
        wait_for(recorder)
        with started("lz_penalty", "guard", "--upstream", f"http://127.0.0.1:{recorder}", "--port", guard, *limits):
            wait_for(guard, 120)
            answers = asyncio.run(_all(f"http://127.0.0.1:{guard}", model, count, at_once, fields))
            found = httpx.get(f"http://127.0.0.1:{recorder}/records", timeout=60, trust_env=False).json()
            health = httpx.get(f"http://127.0.0.1:{guard}/health", timeout=60, trust_env=False)
            assert health.status_code == 200
    totals = {"healthy": 0, "cut": 0}
    for number, (status, got) in enumerate(answers):
        sent = base64.b64decode(found[str(number)])
        assert status == 200, got
        own = [one for one in events(got) if "lz_guard" in one]
        totals["cut" if own else "healthy"] += 1
        if own:
            _check_cut(got, sent, own)
        else:
            assert got == sent, number
            assert TandemWatch(EARLY).feed(_text(got)) is None
    return totals


def _check_cut(got: bytes, sent: bytes, own: list[dict[str, Any]]) -> None:
    same = next(
        (i for i, (one, other) in enumerate(zip(got, sent, strict=False)) if one != other), min(len(got), len(sent))
    )
    end = max(got.rfind(b"\n\n", 0, same) + 2, got.rfind(b"\r\n\r\n", 0, same) + 4)
    passed, about = got[:end], own[0]["lz_guard"]
    text = _text(passed)
    last = _text(passed[passed[:-4].rfind(b"data: ") :])
    assert got.count(b"data: ") == passed.count(b"data: ") + 2  # the last event and [DONE]
    assert TandemWatch(EARLY).feed(text) is not None
    assert TandemWatch(EARLY).feed(text[: len(text) - len(last)]) is None
    least = max(EARLY.min_length, EARLY.min_copies * about["unit_length"])
    assert about["onset"] + least <= len(text) < about["onset"] + least + len(last) + 1


def _text(data: bytes) -> str:
    choices = [choice for one in events(data) for choice in one.get("choices", [])]
    return "".join(one["text"] if "text" in one else one["delta"].get("content") or "" for one in choices)


async def _all(address: str, model: str, count: int, at_once: int, fields: dict[str, Any]) -> list[tuple[int, bytes]]:
    prompts = bundled_model.prompts()
    gate = asyncio.Semaphore(at_once)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)

    async def one(client: httpx.AsyncClient, number: int) -> tuple[int, bytes]:
        loops = number % 3 == 0
        text = prompts[4] if loops else prompts[number % len(prompts)]  # the fifth soon repeats "of the Council"
        body = {"model": model, "prompt": text, "stream": True, "max_tokens": 240 if loops else 8 + number % 9}
        async with gate:
            reply = await client.post(
                "/v1/completions", json=body | {"temperature": 0} | fields, headers={"x-record": str(number)}
            )
        return reply.status_code, reply.content

    async with httpx.AsyncClient(base_url=address, limits=limits, timeout=1_200, trust_env=False) as client:
        return await asyncio.gather(*(one(client, number) for number in range(count)))
