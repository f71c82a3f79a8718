"""A server whose default is a policy with a ladder: over HTTP, with its metrics; the worker has its own process."""

import asyncio

import pytest

from lz_penalty.engines.server import ServerSettings
from tests.engines.vllm.engines import serve
from tests.engines.vllm.test_policy import LOOPS, PROMPTS, SHADOW, STOP
from tests.engines.vllm.test_server import client_of, metric
from tests.support.policy_truth import Truth

PAD = 1  # the model never writes it
SERVER = '{"default": {"lz_policy": "default", "lz_stop_copies": 20}, "stop_token_id": 1, "max_window_size": 1024}'
OFF = {"lz_penalty": 0, "lz_stop_copies": "none"}
FIELDS = (None, {"lz_penalty": 0}, OFF, SHADOW, {"lz_answer": "paper"}, {"lz_end_thinking_copies": 5})
BAD = (
    ({"lz_policy": "best"}, "lz_policy = 'best': must be one of 'default'"),
    ({"lz_code": "off"}, "lz_code = 'off': must be one of"),
    ({"lz_stop_copies": 2}, "lz_stop_copies = 2: must be"),
    ({"lz_end_thinking_copies": 30}, "lz_stop_copies = 20.0: must be more than lz_end_thinking_copies = 30"),
    ({"lz_shadow": "maybe"}, "lz_shadow = 'maybe': must be"),
    ({"lz_policy": "default", "lz_window_size": 2048}, "lz_window_size = 2048: must be at most 1024"),
)


@pytest.fixture(scope="module")
def answers(tokenizer, tmp_path_factory):
    """Replies to everything at once, and the server's metrics afterwards."""
    asked = [{"prompt": text, "fields": fields} for text in PROMPTS for fields in FIELDS]
    asked += [{"prompt": LOOPS, "fields": {"lz_penalty": 0, **STOP}, "ignore_eos": True, "min_tokens": 290}]

    async def send(client, task):
        body = {"model": "bundled", "max_tokens": 300, "temperature": 0, "return_token_ids": True, **task}
        body["prompt"] = tokenizer(task["prompt"]).input_ids
        reply = await client.post("/v1/completions", json=body | {"vllm_xargs": body.pop("fields") or {}})
        return reply.status_code, reply.json()

    async def run(address):
        async with client_of(address) as client:
            bad = [{"prompt": "x", "fields": fields} for fields, _ in BAD]
            replies = await asyncio.gather(*(send(client, task) for task in asked + bad))
            chat = {"model": "bundled", "messages": [{"role": "user", "content": "What is 2 + 3?"}], "max_tokens": 5}
            replies.append(await client.post("/v1/chat/completions", json=chat))  # shows that the others have left
            return replies

    env = {"LZ_PENALTY_SERVER": SERVER, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path_factory.mktemp("metrics"))}
    with serve("--max-num-seqs", "16", "--max-model-len", "512", env=env) as address:
        *replies, chat = asyncio.run(run(address))
        metrics = {
            name: metric(address, f"lz_penalty:{name}_total") for name in ("shadow_steps", "shadow_changed", "stopped")
        }
    assert chat.status_code == 200
    good = []
    for task, (status, reply) in zip(asked, replies, strict=False):
        assert status == 200, reply
        good.append({**task, **reply["choices"][0], "prompt": tokenizer(task["prompt"]).input_ids})
    return good, replies[len(asked) :], metrics


def test_every_token(answers, model, tokenizer, special):
    """Requests use the default, refine it or switch it off. The metrics endpoint counts shadow mode."""
    good, _, metrics = answers
    truth, server = Truth(tokenizer, special), ServerSettings.from_json(SERVER)
    changed = 0
    for one in good:
        asked = server.settings_of(one["fields"])
        seen = truth.check_output(model, one["prompt"], asked, one["token_ids"]).seen
        changed += seen["would differ"] if one["fields"] is SHADOW else 0
    assert metrics["shadow_steps"] == sum(len(one["token_ids"]) for one in good if one["fields"] is SHADOW)
    assert abs(metrics["shadow_changed"] - changed) <= 1  # a near-tie
    assert changed > 0


def test_the_end_can_be_told_from_others(answers):
    """A stop by the ladder has its own stop reason. Requests without a ladder are never stopped."""
    good, _, metrics = answers
    ended = [one for one in good if one["stop_reason"] == PAD]
    assert all(one["fields"] not in (OFF, SHADOW) for one in ended)
    assert all(one["token_ids"][-1] == PAD and "<|pad|>" not in one["text"] for one in ended)
    assert not any(PAD in one["token_ids"] for one in good if one not in ended)
    assert good[-1] in ended  # in spite of `ignore_eos` and `min_tokens`
    assert len(ended) > 1
    assert metrics["stopped"] >= len(ended)  # with those in shadow mode


def test_bad_fields_are_refused(answers):
    for (status, reply), (fields, message) in zip(answers[1], BAD, strict=True):
        assert status == 400, fields
        assert message in reply["error"]["message"], (fields, reply)
