"""The HTTP server in its own process: concurrent requests, retraction, malformed settings, all three endpoints."""

import asyncio
import json
import random
import re
from dataclasses import replace

import httpx
import pytest

from lz_penalty import LZPenaltyConfig
from lz_penalty.detection import find_repetition
from tests.engines.sglang.engines import RETRACT, serve
from tests.support import ROOT
from tests.support.examples import example
from tests.support.malformed import malformed
from tests.support.replaying import check_replay
from tests.support.requests_and_truth import check_all, mixed_requests
from tests.support.settings import UNGATED

# A cache of 900 tokens: about three requests at their longest, with up to 48 in the batch.
SMALL = ("--max-running-requests", "48", "--max-total-tokens", "900", "--chunked-prefill-size", "128")
SMALL += ("--enable-metrics",)
DEFAULT = replace(UNGATED, strength=0.2)
SERVER = json.dumps({"default": DEFAULT.to_request(), "max_window_size": 1024, "max_loop_window": 4096})


@pytest.fixture(scope="module")
def server():
    with serve(*SMALL, env=RETRACT) as address:
        yield address


def client_of(address):
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx.AsyncClient(base_url=address, timeout=600, limits=limits)


async def generate(client, request, **sampling):
    """Send a request to SGLang's own endpoint."""
    sampling = {"max_new_tokens": request.max_tokens, "custom_params": request.fields, **request.sampling, **sampling}
    reply = await client.post("/generate", json={"input_ids": request.prompt, "sampling_params": sampling})
    assert reply.status_code == 200, reply.text
    outputs = reply.json()
    return [one["output_ids"] for one in outputs] if isinstance(outputs, list) else outputs["output_ids"]


async def complete(client, request):
    """Send a request to the OpenAI-compatible endpoint."""
    body = {"model": "bundled", "prompt": request.prompt, "max_tokens": request.max_tokens, "return_token_ids": True}
    fields = {} if request.fields is None else {"custom_params": request.fields}
    reply = await client.post("/v1/completions", json=body | request.sampling | fields)
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]["token_ids"]


async def refused(client, fields, chat):
    body = {"custom_params": fields, "model": "bundled", "max_tokens": 2}
    if chat:
        body["messages"] = [{"role": "user", "content": "What is 2 + 3?"}]
        return await client.post("/v1/chat/completions", json=body)
    sampling = {"max_new_tokens": 2, "custom_params": fields}
    return await client.post("/generate", json={"input_ids": [5, 6, 7], "sampling_params": sampling})


async def retractions(client):
    text = (await client.get("/metrics")).text
    found = re.findall(r"^sglang:num_retracted_requests_total(?:{[^}]*})? (\S+)$", text, re.M)
    return sum(map(float, found))


def test_the_requests_of_the_page(server):
    """docs/sglang.md shows parts of what the server answers to its requests: a loop, and none with the penalty."""
    page = (ROOT / "docs" / "sglang.md").read_text(encoding="utf-8")
    bodies = map(json.loads, re.findall(r"-d '(\{.*?\})'", page, re.DOTALL))
    texts = [
        httpx.post(f"{server}/v1/completions", json=body, timeout=300).json()["choices"][0]["text"] for body in bodies
    ]
    shown = re.findall(r"^```text\n\.\.\. (.*) \.\.\.$", page, re.MULTILINE)
    assert [part in text for part, text in zip(shown, texts, strict=True)] == [True, True]
    assert shown[1] not in texts[0]


def test_concurrent_requests_among_malformed_ones(server, model, tokenizer, special):
    requests = mixed_requests(tokenizer, special, 120, seed=3)
    bad = malformed(300)

    async def run():
        rng = random.Random(0)

        async def good(client, number, request):
            await asyncio.sleep(rng.random() * 8)
            return await (generate if number % 2 else complete)(client, request)

        async def wrong(client, number, fields):
            await asyncio.sleep(rng.random() * 12)
            return await refused(client, fields, chat=number % 2)

        async with client_of(server) as client:
            outputs, refusals = await asyncio.gather(
                asyncio.gather(*(good(client, *one) for one in enumerate(requests))),
                asyncio.gather(*(wrong(client, *one) for one in enumerate(bad))),
            )
            return outputs, refusals, await retractions(client)

    outputs, refusals, retracted = asyncio.run(run())
    for fields, reply in zip(bad, refusals, strict=True):
        assert reply.status_code == 400, (fields, reply.status_code, reply.text)
        assert any(name.removeprefix("lz_") in reply.text for name in fields), (fields, reply.text)
    check_all(model, requests, outputs)
    print(f"retractions: {retracted:.0f}")
    assert retracted > 10


def test_the_client_of_the_examples(server):
    http_client = example("http_client")

    text = http_client.main(f"{server}/v1", "bundled", "sglang", "The old man looked at the sea, and said that")
    assert text
    assert not find_repetition(text, min_copies=5, min_length=60)


@pytest.mark.parametrize(
    ("custom", "message"),
    [
        ('{"lz_penalty": NaN}', "lz_penalty"),
        ('{"lz_penalty": 1e999}', "lz_penalty"),
        ('"lz_penalty"', "custom_params"),
        ('["lz_penalty"]', "custom_params"),
        ('{"lz_penalty": {"a": 1}}', "lz_penalty"),
        ('{"lz_penalty": 0.1, "lz_window_size": true}', "lz_window_size"),
        ('{"lz_penalty": 0.1, "lz_window_size": 1' + 40 * "0" + "}", "lz_window_size"),
    ],
)
def test_what_json_can_hold(server, custom, message):
    body = '{"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 2, "custom_params": ' + custom + "}}"
    reply = httpx.post(server + "/generate", content=body, headers={"Content-Type": "application/json"}, timeout=60)
    assert 400 <= reply.status_code < 500
    assert message in reply.text or "JSON" in reply.text or "json" in reply.text, reply.text


def test_beam_search_is_refused(server):
    sampling = {"max_new_tokens": 2, "beam_width": 2, "n": 2, "custom_params": {"lz_penalty": 0.2}}
    reply = httpx.post(server + "/generate", json={"input_ids": [5, 6, 7], "sampling_params": sampling}, timeout=60)
    assert reply.status_code == 400
    assert "not exact with beam search" in reply.text


def test_server_default_caps_and_several_completions(model, tokenizer, special):
    """Requests that say nothing get the default, and a request can refine it or switch it off; with `n > 1` as well."""
    default = replace(DEFAULT, exempt_token_ids=special)
    requests = [one for one in mixed_requests(tokenizer, special, 20, seed=4) if one.max_tokens > 1][:6]
    asked = (None, {}, {"lz_penalty": 0}, {"lz_window_size": 100}, {"lz_buffer_size": 3}, {"lz_preset": "failsafe"})
    refined = (replace(default, window_size=100), replace(default, buffer_size=3))
    meant = (default, default, None, *refined, LZPenaltyConfig.failsafe(exempt_token_ids=special))
    for request, fields, config in zip(requests, asked, meant, strict=True):
        request.fields, request.config = fields, config
    tried = ({"lz_window_size": 1024}, {"lz_window_size": 1025}, {"lz_loop_window": 5000}, {"lz_x": 1})

    async def run(address):
        async with client_of(address) as client:
            single = await asyncio.gather(*(complete(client, request) for request in requests))
            several = await asyncio.gather(*(generate(client, request, n=3) for request in requests))
            return [single, *zip(*several, strict=True)], [await refused(client, fields, chat=True) for fields in tried]

    with serve("--max-running-requests", "8", env={"LZ_PENALTY_SERVER": SERVER}) as address:
        outputs, replies = asyncio.run(run(address))
    assert len(outputs) == 4
    for completions in outputs:
        check_all(model, requests, completions)
    assert [reply.status_code for reply in replies] == [200, 400, 400, 400]
    assert "lz_window_size = 1025: must be at most 1024, the cap of this server." in replies[1].text
    assert "lz_loop_window = 5000: must be at most 4096" in replies[2].text


def test_replaying_a_log(server, tmp_path):
    check_replay(tmp_path, server, "sglang", "bundled")
