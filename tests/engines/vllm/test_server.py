"""The OpenAI-compatible server in its own process: hundreds of concurrent requests, preemption, malformed settings."""

import asyncio
import json
import random
import re
import urllib.request
from dataclasses import replace

import httpx
import pytest

from lz_penalty import LZPenaltyConfig, bundled_model
from lz_penalty.detection import find_repetition
from lz_penalty.engines.vllm._counting import LoopCounts
from tests.engines.vllm.engines import V2, serve
from tests.support import ROOT
from tests.support.examples import example
from tests.support.malformed import malformed
from tests.support.replaying import check_replay
from tests.support.requests_and_truth import check_all, mixed_requests
from tests.support.settings import UNGATED

# A cache of 40 blocks of 32 tokens: about six requests at their longest, with up to 48 in the batch.
SMALL = ("--max-num-seqs", "48", "--block-size", "32", "--num-gpu-blocks-override", "40", "--max-model-len", "512")
OUTCOMES = ("penalised", "none", "refused")
DEFAULT = replace(UNGATED, strength=0.2)
SERVER = json.dumps({"default": DEFAULT.to_request(), "max_window_size": 1024, "max_loop_window": 4096})


@pytest.fixture(scope="module")
def server():
    with serve(*SMALL, "--max-num-batched-tokens", "256") as address:
        yield address


async def complete(client, request, **more):
    body = {"model": "bundled", "prompt": request.prompt, "max_tokens": request.max_tokens, "return_token_ids": True}
    fields = {} if request.fields is None else {"vllm_xargs": request.fields}
    reply = await client.post("/v1/completions", json=body | request.sampling | fields | more)
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]["token_ids"]


def metric(address, name):
    with urllib.request.urlopen(f"{address}/metrics") as reply:
        return sum(
            float(value)
            for value in re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", reply.read().decode(), re.M)
        )


def client_of(address):
    return httpx.AsyncClient(
        base_url=address, timeout=600, limits=httpx.Limits(max_connections=None, max_keepalive_connections=0)
    )


def test_two_hundred_concurrent_requests_among_a_thousand_malformed(server, model, tokenizer, special):
    requests = mixed_requests(tokenizer, special, 220, seed=3)
    # These come at once and grow to four blocks each, 96 in all: requests must be preempted, however fast the machine is.
    together = [
        replace(one, prompt=one.prompt[:20], max_tokens=90) for one in mixed_requests(tokenizer, special, 24, seed=4)
    ]
    as_number = {"lz_preset": "guarded", "lz_gate_high": True}  # vLLM's endpoint makes it 1, which is allowed
    bad = [fields for fields in malformed(1000) if fields != as_number]
    assert len(bad) > 980

    async def run():
        rng = random.Random(0)

        async def good(client, request, latest=8):
            await asyncio.sleep(rng.random() * latest)
            return await complete(client, request)

        async def refused(client, fields):
            await asyncio.sleep(rng.random() * 20)
            body = {"model": "bundled", "prompt": [5, 6, 7], "max_tokens": 2, "vllm_xargs": fields}
            reply = await client.post("/v1/completions", json=body)
            return reply.status_code, reply.text

        async with client_of(server) as client:
            return await asyncio.gather(
                asyncio.gather(
                    *(good(client, request, latest=0) for request in together),
                    *(good(client, request) for request in requests),
                ),
                asyncio.gather(*(refused(client, fields) for fields in bad)),
            )

    outputs, refusals = asyncio.run(run())
    for fields, (status, text) in zip(bad, refusals, strict=True):
        assert status == 400, (fields, status, text)
        assert any(name.removeprefix("lz_") in text for name in fields), (fields, text)
    check_all(model, [*together, *requests], outputs)
    preemptions = metric(server, "vllm:num_preemptions_total")
    print(f"preemptions: {preemptions:.0f}")
    assert preemptions > 0


def test_the_requests_of_the_page(server):
    """The first curl line of docs/vllm.md ends in a loop, the second does not, the third has a policy; answers are shown."""
    page = (ROOT / "docs" / "vllm.md").read_text(encoding="utf-8")
    loops, texts = [], []
    for body in re.findall(r"-d '(\{.*?\})'", page, re.DOTALL):
        reply = httpx.post(f"{server}/v1/completions", json=json.loads(body) | {"return_token_ids": True}, timeout=300)
        loops.append(find_repetition(reply.json()["choices"][0]["token_ids"]) is not None)
        texts.append(reply.json()["choices"][0]["text"])
    assert loops[:2] == [True, False]
    assert len(loops) == 3
    shown = re.findall(r"^```text\n\.\.\. (.*) \.\.\.$", page, re.MULTILINE)
    assert [part in text for part, text in zip(shown, texts[:2], strict=True)] == [True, True]
    assert shown[1] not in texts[0]


def test_the_client_of_the_examples(server):
    http_client = example("http_client")

    text = http_client.main(f"{server}/v1", "bundled", "vllm", "The old man looked at the sea, and said that")
    assert text
    assert not find_repetition(text, min_copies=5, min_length=60)


def test_server_default_caps_and_switching_off(model, tokenizer, special):
    """Over the chat and completion endpoints; the metrics count what happened."""
    default = replace(DEFAULT, exempt_token_ids=special)
    requests = mixed_requests(tokenizer, special, 10, seed=4)[:4]
    asked = (None, {"lz_penalty": 0}, {"lz_window_size": 100}, {"lz_preset": "failsafe"})
    meant = (
        default,
        None,
        replace(default, window_size=100),
        LZPenaltyConfig.failsafe(exempt_token_ids=special),
    )
    for request, fields, config in zip(requests, asked, meant, strict=True):
        request.fields, request.config = fields, config

    async def run(address):
        async with client_of(address) as client:
            outputs = await asyncio.gather(*(complete(client, request) for request in requests))
            body = {"model": "bundled", "messages": [{"role": "user", "content": "What is 2 + 3?"}], "max_tokens": 5}
            replies = [
                await client.post("/v1/chat/completions", json=body | {"vllm_xargs": fields})
                for fields in (
                    {"lz_window_size": 1024},
                    {"lz_window_size": 1025},
                    {"lz_loop_window": 5000},
                    {"lz_x": 1},
                )
            ]
            return outputs, replies

    with serve("--max-num-seqs", "8", "--max-model-len", "512", env={"LZ_PENALTY_SERVER": SERVER}) as address:
        outputs, replies = asyncio.run(run(address))
    check_all(model, requests, outputs)
    assert [reply.status_code for reply in replies] == [200, 400, 400, 400]
    assert (
        "lz_window_size = 1025: must be at most 1024, the cap of this server." in replies[1].json()["error"]["message"]
    )
    assert "lz_loop_window = 5000: must be at most 4096" in replies[2].json()["error"]["message"]


@pytest.mark.parametrize("runner", ["V1", "V2"])
def test_metrics(tmp_path, tokenizer, runner):
    """Requests are counted as they arrive, loops in the worker: those that a recomputation finds in the answers.

    On V2 the texts are read every so often, so the last tokens of an answer may not be seen.
    """
    weak = {"lz_preset": "failsafe", "lz_penalty": 0.004}  # gives way to a loop for a while
    requests = mixed_requests(tokenizer, (), 8, seed=6)
    for request, text in zip(requests, bundled_model.prompts(), strict=False):
        request.prompt = tokenizer("<think>\n" + text).input_ids[:4]  # short prompts in thinking loop most
        request.fields, request.max_tokens, request.sampling = weak, 240, {"temperature": 0}

    async def run(address):
        async with client_of(address) as client:
            outputs = await asyncio.gather(*(complete(client, request) for request in requests))
            requests[0].fields = {"lz_penalty": 0}
            await complete(client, requests[0])  # lets the worker see that the others have left
            reply = await client.post(
                "/v1/completions", json={"model": "bundled", "prompt": "x", "vllm_xargs": {"lz_x": 1}}
            )
            return outputs, reply.status_code

    env = {"LZ_PENALTY_SERVER": '{"count_loops": true}', "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    env |= V2 if runner == "V2" else {}
    with serve("--max-num-seqs", "16", "--max-model-len", "1024", env=env) as address:
        outputs, status = asyncio.run(run(address))
        seen, left = metric(address, "lz_penalty:loops_seen_total"), metric(address, "lz_penalty:loops_left_total")
        arrived = {name: metric(address, f'lz_penalty:requests_total{{settings="{name}"}}') for name in OUTCOMES}
    assert status == 400
    assert arrived == {"penalised": len(requests), "none": 1, "refused": 1}
    counts = LoopCounts()
    for slot, output in enumerate(outputs):
        counts.look(slot, output, len(output), output)
    if runner == "V1":
        assert (seen, left) == (counts.found["lz_loops_seen"], counts.found["lz_loops_left"])
    assert 0 < seen <= counts.found["lz_loops_seen"]
    assert 0 < left <= counts.found["lz_loops_left"]


def test_replaying_a_log(server, tmp_path):
    check_replay(tmp_path, server, "vllm", "bundled")
