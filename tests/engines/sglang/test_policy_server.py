"""Policies, the ladder and shadow mode in the HTTP server, with a default of the operator and a grammar engine."""

import asyncio
import json
import re

import httpx
import pytest

from lz_penalty import bundled_model
from lz_penalty.engines._generation import LOOPS_ONLY, NO_SECTIONS, Generation
from tests.engines.sglang.engines import serve
from tests.engines.sglang.test_server import client_of
from tests.support.settings import UNGATED

SERVER = '{"default": {"lz_policy": "default", "lz_stop_copies": 20}, "max_window_size": 1024, "count_loops": true}'
OFF = {"lz_policy": "default", "lz_penalty": 0}  # the ladder stays
SCHEMA = """{"type": "object", "required": ["name", "old"], "additionalProperties": false,
    "properties": {"name": {"enum": ["Ann", "Bob"]}, "old": {"type": "boolean"}}}"""


@pytest.fixture(scope="module")
def server():
    with serve("--max-running-requests", "8", "--enable-metrics", env={"LZ_PENALTY_SERVER": SERVER}) as address:
        yield address


@pytest.fixture(scope="module")
def looping(tokenizer):
    """Prompts after which the model repeats itself."""
    return [tokenizer("<think>\n" + text).input_ids[:4] for text in bundled_model.prompts()[:24]]


def post(server, path, **body):
    reply = httpx.post(server + path, json=body, timeout=120)
    assert reply.status_code == 200, reply.text
    return reply.json()


def sampled(server, prompt, custom, **sampling):
    sampling = {"temperature": 0, "max_new_tokens": 150, "custom_params": custom} | sampling
    reply = post(server, "/generate", input_ids=prompt, sampling_params=sampling)
    return reply["output_ids"], reply["meta_info"]["finish_reason"], reply["text"]


def metrics(server):
    text = httpx.get(server + "/metrics", timeout=60).text
    return {name: float(value) for name, value in re.findall(r"^lz_penalty:(\w+)(?:{[^}]*})? (\S+)$", text, re.M)}


def test_the_default_stops_a_loop(server, looping):
    """Every endpoint stops the loop, also with `ignore_eos` and with a minimum of tokens."""
    found = []
    for prompt in looping:
        for options in ({}, {"ignore_eos": True, "min_new_tokens": 140}):
            tokens, reason, text = sampled(server, prompt, OFF, **options)
            if reason.get("matched") == "lz_repetition":
                found.append(prompt)
                start, period, length = reason["lz_repetition"]
                assert start + length == len(tokens)
                assert length == max(16, 20 * period)
                assert tokens[start + period :] == tokens[start:-period]
                assert text
                assert reason["lz_stopped"] == 1
        if len(found) > 2:
            break
    assert len(found) > 2
    body = {"model": "bundled", "prompt": found[0], "max_tokens": 150, "temperature": 0, "custom_params": OFF}
    (choice,) = post(server, "/v1/completions", **body)["choices"]
    assert (choice["finish_reason"], choice["matched_stop"]) == ("stop", "lz_repetition")
    with httpx.stream("POST", server + "/v1/completions", json=body | {"stream": True}, timeout=120) as reply:
        chunks = [json.loads(line[6:]) for line in reply.iter_lines() if line.startswith("data: {")]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"]) == choice["text"]
    assert chunks[-1]["choices"][0]["matched_stop"] == "lz_repetition"


def test_bad_fields_are_refused(server, looping):
    for custom in (
        {"lz_policy": "defualt"},
        {"lz_code": "gaurded"},
        {"lz_stop_copies": 1},
        {"lz_stop_copies": 1e9},
        {"lz_end_thinking_copies": "x"},
        {"lz_shadow": "perhaps"},
        {"lz_stop_copies": 5, "lz_end_thinking_copies": 9},
        {"lz_policy": "default", "lz_window_size": 1025},
        {"lz_stop_copy": 5},
    ):
        sampling = {"max_new_tokens": 2, "custom_params": custom}
        reply = httpx.post(server + "/generate", json={"input_ids": [5, 6], "sampling_params": sampling}, timeout=60)
        assert reply.status_code == 400, (custom, reply.text)
        assert any(name in reply.text for name in custom)
    assert sampled(server, looping[0], None, max_new_tokens=3)[0]


def test_shadow_mode_changes_nothing_and_counts(server, looping):
    """The metrics are the sums of the numbers that the requests report."""
    before = metrics(server)
    off = {"lz_penalty": 0, "lz_stop_copies": "none"}
    shadow = UNGATED.to_request() | {"lz_penalty": 0.3, "lz_shadow": True}
    sums = dict.fromkeys(("lz_shadow_steps", "lz_shadow_changed", "lz_loops_seen", "lz_loop_tokens", "lz_stopped"), 0)
    for prompt in looping[:4]:
        tokens, reason, _ = sampled(server, prompt, shadow)
        plain, bare, _ = sampled(server, prompt, off)
        assert tokens == plain
        assert reason["type"] == bare["type"]
        assert not any(key.startswith("lz_") for key in bare)
        assert reason["lz_shadow_steps"] == len(tokens)
        sums = {name: sums[name] + reason[name] for name in sums}
    print(sums)
    assert min(sums.values()) > 0
    after = metrics(server)
    for name, value in sums.items():
        metric = name.removeprefix("lz_") + "_total"
        assert after[metric] - before.get(metric, 0) == value


def test_loops_are_counted_without_a_policy(server, looping):
    before = metrics(server)
    want = dict.fromkeys(("lz_loops_seen", "lz_loops_left", "lz_loop_tokens"), 0)
    for prompt in looping[:6]:
        tokens, reason, _ = sampled(
            server, prompt, {"lz_preset": "failsafe", "lz_penalty": 1e-6, "lz_stop_copies": "none"}
        )
        assert not any(key.startswith("lz_") for key in reason)
        generation = Generation(NO_SECTIONS, LOOPS_ONLY, ())
        generation.extend(tokens)
        want = {name: number + generation.totals()[name] for name, number in want.items()}
    assert want["lz_loops_seen"] > 0
    after = metrics(server)
    for name, value in want.items():
        metric = name.removeprefix("lz_") + "_total"
        assert after.get(metric, 0) - before.get(metric, 0) == value


def test_white_space_under_a_grammar(server, tokenizer):
    """A model that writes only spaces where it may: a penalty breaks the loop within the grammar, else the ladder stops it."""
    bias, prompt = {str(tokenizer(" ").input_ids[0]): 6}, tokenizer(bundled_model.prompts()[0]).input_ids
    sampling = {"json_schema": SCHEMA, "logit_bias": bias, "max_new_tokens": 150}
    none = {"lz_penalty": 0, "lz_stop_copies": "none"}
    tokens, reason, text = sampled(server, prompt, none, **sampling)
    assert reason["type"] == "length"
    assert " " * 100 in text
    failsafe = {"lz_preset": "failsafe", "lz_penalty": 1, "lz_code": "none"}
    for penalty in (failsafe, None):  # `None`: the policy of the server
        _, reason, text = sampled(server, prompt, penalty, **sampling)
        assert reason["type"] == "stop"
        assert reason["matched"] != "lz_repetition"
        assert set(json.loads(text)) == {"name", "old"}
    stopped, reason, _ = sampled(server, prompt, OFF, **sampling)
    assert reason["matched"] == "lz_repetition"
    assert stopped == tokens[: len(stopped)]


def test_an_aborted_request_does_not_touch_the_others(server, looping):
    """One request of a batch is aborted, another finishes early. The others write the tokens that they write alone."""
    fields = [{}, OFF, {"lz_policy": "default", "lz_shadow": True}, {"lz_preset": "guarded", "lz_stop_copies": "none"}]
    alone = [sampled(server, prompt, custom)[:2] for prompt, custom in zip(looping, fields, strict=False)]

    async def run():
        async with client_of(server) as client:

            async def generate(prompt, custom, rid=None, tokens=150):
                sampling = {
                    "temperature": 0,
                    "max_new_tokens": tokens,
                    "custom_params": custom,
                    "ignore_eos": bool(rid),
                }
                body = {"input_ids": prompt, "sampling_params": sampling} | ({"rid": rid} if rid else {})
                return (await client.post("/generate", json=body)).json()

            tasks = [generate(prompt, custom) for prompt, custom in zip(looping, fields, strict=False)]
            aborted = asyncio.create_task(generate(looping[5], {"lz_stop_copies": "none"}, "one", 800))
            others = asyncio.gather(*tasks)
            while not aborted.done():  # an abort that comes before its request has no effect
                await asyncio.sleep(0.3)
                await client.post("/abort_request", json={"rid": "one"})
            return await others, await aborted

    others, aborted = asyncio.run(run())
    assert aborted["meta_info"]["finish_reason"]["type"] == "abort", aborted
    assert [(one["output_ids"], one["meta_info"]["finish_reason"]) for one in others] == alone
