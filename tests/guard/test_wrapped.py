"""Streams of the real `openai` client, sync and async, wrapped: the same verdicts as the proxy's."""

import asyncio
import json

import pytest

from lz_penalty.guard import AsyncGuardedStream, GuardedStream, Thresholds
from tests.support.fake_upstream import LOOP
from tests.support.guarding import events

openai = pytest.importorskip("openai")

MESSAGES = [{"role": "user", "content": "Why?"}]


def model(**how):
    return json.dumps({"do": "stream", "words": 5, "delay": 0.001, **how})


def asked(client, route, user, **how):
    if route == "responses":
        return client.responses.create(model=model(**how), input="Why?", stream=True, user=user)
    if route == "completions":
        return client.completions.create(model=model(**how), prompt="Why?", stream=True, user=user)
    return client.chat.completions.create(model=model(**how), messages=MESSAGES, stream=True, user=user)


@pytest.mark.parametrize("route", ["chat", "completions", "responses"])
def test_a_loop_ends_the_stream(guard, route):
    body = guard.body(f"proxy-{route}", words=5, copies=300)
    about = events(guard.post(route, body).content)[-1]["lz_guard"]
    with openai.OpenAI(base_url=f"{guard.upstream}/v1", api_key="k", max_retries=0) as client:
        with GuardedStream(asked(client, route, f"sync-{route}", copies=3_000, delay=0.001)) as stream:
            items = list(stream)
        assert {"action": "cut"} | stream.verdict.to_json() == about
        assert 280 < len(items) < 320
        assert stream.response.status_code == 200  # other attributes are the wrapped stream's
        healthy = GuardedStream(asked(client, route, f"healthy-{route}", copies=10))
        count = len(list(healthy))
        assert (healthy.verdict, count) == (None, len(list(asked(client, route, f"plain-{route}", copies=10))))

    async def run():
        async with openai.AsyncOpenAI(base_url=f"{guard.upstream}/v1", api_key="k", max_retries=0) as client:
            stream = AsyncGuardedStream(await asked(client, route, f"async-{route}", copies=3_000, delay=0.001))
            async with stream:
                return [item async for item in stream], stream.verdict

    items_async, verdict = asyncio.run(run())
    assert (len(items_async), verdict) == (len(items), stream.verdict)
    for user in (f"sync-{route}", f"async-{route}"):
        assert "complete" not in guard.left(user)


def test_thresholds_and_choices(guard):
    with openai.OpenAI(base_url=f"{guard.upstream}/v1", api_key="k", max_retries=0) as client:
        early = Thresholds(min_length=200, min_length_data=300)
        stream = GuardedStream(asked(client, "chat", "early", copies=50), early)
        list(stream)
        assert stream.verdict.copies == pytest.approx(200 / len(LOOP), abs=0.1)
        two = GuardedStream(asked(client, "chat", "two", copies=60, n=2), early, choices=2)
        items = [(item.choices[0].index, item) for item in two]
        assert two.verdict.choice == 0
        assert len([1 for index, _ in items if index == 0]) < 50
        assert [item for index, item in items if index == 1][-1].choices[0].finish_reason == "stop"


def test_the_client_understands_a_cut_answer(guard):
    """The proxy's last events, read by the `openai` client."""
    with openai.OpenAI(base_url=f"{guard.address}/v1", api_key="k", max_retries=0) as client:
        chunks = list(asked(client, "chat", "read", copies=300))
        assert chunks[-1].choices[0].finish_reason == "stop"
        assert chunks[-1].lz_guard["unit"] == LOOP
        last = list(asked(client, "responses", "read-r", copies=300))[-1]
        assert (last.type, last.response.status) == ("response.completed", "completed")
        assert LOOP in last.response.output_text
        assert last.lz_guard["unit"] == LOOP
