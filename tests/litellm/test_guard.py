"""The guard's callback in a real LiteLLM proxy, in a process of its own: `make test-litellm`."""

import json

import httpx
import pytest

pytest.importorskip("litellm")

from tests.litellm.proxies import KEY, running
from tests.support.fake_upstream import LOOP
from tests.support.guarding import events, fake_upstream

CONFIG = """
model_list:
  - model_name: "*"
    litellm_params: {{model: "openai/*", api_base: "{upstream}/v1", api_key: "k"}}
litellm_settings:
  callbacks: ["lz_penalty.guard.litellm.loop_guard"]
"""


@pytest.fixture(scope="module")
def upstream():
    with fake_upstream() as address:
        yield address


@pytest.fixture(scope="module")
def proxy(upstream, tmp_path_factory):
    with running(tmp_path_factory.mktemp("litellm"), CONFIG.format(upstream=upstream)) as address:
        yield address


def ask(proxy, user, **how):
    do = how.pop("do", "stream")
    body = {"model": "x" + json.dumps({"do": do, **how}).encode().hex(), "user": user, "stream": do == "stream"}
    body["messages"] = [{"role": "user", "content": "Why?"}]
    headers = {"authorization": f"Bearer {KEY}"}
    return httpx.post(f"{proxy}/v1/chat/completions", json=body, headers=headers, timeout=120, trust_env=False)


def newest_record(upstream):
    """What upstream received and sent; LiteLLM does not pass on the field `user`, so there is one record."""
    (record,) = httpx.get(f"{upstream}/records", trust_env=False).json().values()
    return record


def text_of(found):
    return "".join(choice["delta"].get("content") or "" for one in found for choice in one["choices"])


def test_a_stream_that_loops_is_cut(proxy, upstream):
    got = ask(proxy, "loop", words=5, copies=400, delay=0.001)
    assert got.status_code == 200, got.text
    found = events(got.content)
    about = found[-1]["provider_specific_fields"]["lz_guard"]
    assert about["unit"] == LOOP
    assert found[-1]["choices"][0]["finish_reason"] == "stop"
    assert 2_000 <= len(text_of(found)) - about["onset"] < 2_020
    assert got.content.endswith(b"data: [DONE]\n\n")
    record = newest_record(upstream)
    assert record["sent_size"] > 10_000
    assert "complete" not in record


def test_a_healthy_stream_is_whole(proxy):
    found = events(ask(proxy, "healthy", words=30).content)
    assert found[-1]["choices"][0]["finish_reason"] == "stop"
    assert not [one for one in found if "lz_guard" in json.dumps(one)]
    assert text_of(found).count(" ") == 30


def test_a_whole_answer_is_cut_back(proxy):
    got = ask(proxy, "whole", do="whole", words=5, copies=100).json()
    assert got["choices"][0]["message"]["content"].count(LOOP) == 1
    assert got["choices"][0]["finish_reason"] == "stop"
    assert got["lz_guard"]["unit"] == LOOP
    fine = ask(proxy, "fine", do="whole", words=30).json()
    assert "lz_guard" not in fine
