"""Policies, ladder and shadow mode in `vllm.LLM`, on the V1 runner, its worker in the scheduler's process as on one GPU.

Every step is checked inside the engine, and every text afterwards. How requests end where the worker has its own process:
test_v2.py and test_policy_server.py.
"""

import json

import pytest

from lz_penalty import bundled_model
from lz_penalty.detection import repetition_at_end
from lz_penalty.policy import settings_from_request
from tests.engines.vllm.engines import SPYING, generate
from tests.engines.vllm.test_offline import SMALL
from tests.support.policy_truth import Truth
from tests.support.settings import UNGATED

NEW = 120
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
LOOPS = "The old man looked at the sea, and said that"
SUM = "Question: What is 17 + 25 - 8?\n"
STOP = {"lz_stop_copies": 6}
SHADOW = UNGATED.to_request() | {"lz_penalty": 0.3, "lz_shadow": 1}
POLICIES = (
    {"lz_policy": "default"},
    {"lz_policy": "default", "lz_penalty": 0.5, "lz_code": "paper", "lz_gate_window": 40, "lz_include_prompt": 1},
    {"lz_preset": "guarded", "lz_table": "none", "lz_stop_copies": 20},
    {"lz_policy": "default", "lz_penalty": 0, "lz_end_thinking_copies": 4, "lz_stop_copies": 8},
    SHADOW,
    {"lz_preset": "guarded", "lz_gate_low": 0.0, "lz_gate_window": 40, "lz_code": "paper", "lz_table": "none"},
    {"lz_preset": "guarded"},
    None,
)
PROMPTS = (
    SUM,
    f"<think>{bundled_model.prompts()[0][:200]}",  # loops
    f"It was said.\n\n```text\n{LOOPS}",
    "| the man | the sea |\n|---|---|\n| the man | the sea |\n| the",
    LOOPS,
    f"<tool_call>\n{{\"text\": \"{LOOPS}",
)  # fmt: skip


@pytest.fixture(scope="module")
def truth(tokenizer, special):
    return Truth(tokenizer, special, stop_adds=1)


@pytest.fixture(scope="module")
def answered(tokenizer):
    """All requests of this module in one engine: `{"prompt": ids, "extra_args": fields, "tokens": ..., "reason": ...}`."""
    texts = [*PROMPTS, *(text[:90] for text in bundled_model.prompts()[:4])]
    tasks = {
        ("policy", i, k): {"prompt": text, "extra_args": fields}
        for i, text in enumerate(texts)
        for k, fields in enumerate(POLICIES)
    }
    for name, more in (("plain", {}), ("ignore_eos", {"ignore_eos": True}), ("min_tokens", {"min_tokens": NEW - 2})):
        tasks["stop", name] = {"prompt": LOOPS, "extra_args": STOP, **more}
    tasks["several"] = {"prompt": LOOPS, "extra_args": STOP, "n": 4, "temperature": 0.05}
    for name, fields in (("alone", None), ("penalty", {"lz_preset": "guarded"}), ("stop", STOP)):
        tasks["json", name] = {"prompt": SUM, "extra_args": fields, "structured_outputs": {"json": SCHEMA}}
    requests = [
        {"temperature": 0, "max_tokens": NEW, **task, "prompt": tokenizer(task["prompt"]).input_ids}
        for task in tasks.values()
    ]
    result = generate(requests, env={"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}, logits_processors=[SPYING], **SMALL)
    assert result["metrics"]["vllm:num_preemptions"] > 0
    found = {
        name: {**request, "all": tokens, "tokens": tokens[0], "reasons": reasons, "reason": reasons[0]}
        for name, request, tokens, reasons in zip(tasks, requests, result["tokens"], result["reasons"], strict=True)
    }
    return found | {"counters": result["counters"]}


def test_every_token(answered, model, truth):
    """Every token equals `policy_truth`, thinking that loops is ended, and every penalty changes some token."""
    forced = shadow_steps = 0
    changed = dict.fromkeys(range(len(POLICIES)), 0)
    for name, one in answered.items():
        if name[0] == "policy":
            asked = settings_from_request(one["extra_args"] or {})
            seen = truth.check_output(model, one["prompt"], asked, one["tokens"]).seen
            forced += seen["forced"]
            changed[name[2]] += seen["would differ"]
            shadow_steps += len(one["tokens"]) if one["extra_args"] is SHADOW else 0
    assert forced > 0
    assert answered["counters"]["lz_thinking_ended"] == forced  # the marker is one token
    assert answered["counters"]["lz_shadow_steps"] == shadow_steps
    assert abs(answered["counters"]["lz_shadow_changed"] - changed[POLICIES.index(SHADOW)]) <= 1  # a near-tie
    penalised = [fields is not None and fields.get("lz_penalty") != 0 for fields in POLICIES]
    assert [changed[k] > 0 for k in range(len(POLICIES))] == penalised, changed


def test_shadow_mode_changes_nothing(answered):
    shadow, without = POLICIES.index(SHADOW), POLICIES.index(None)
    for i in range(len(PROMPTS)):
        assert answered["policy", i, shadow]["tokens"] == answered["policy", i, without]["tokens"]


@pytest.mark.parametrize("name", ["plain", "ignore_eos", "min_tokens"])
def test_the_end_has_a_reason_of_its_own(answered, name):
    one = answered["stop", name]
    assert one["reason"] == ["repetition", "repetition_detected"]
    assert repetition_at_end(one["tokens"], min_copies=6, min_length=16)
    assert not repetition_at_end(one["tokens"][:-1], min_copies=6, min_length=16)
    assert len(one["tokens"]) < NEW - 2


def test_those_that_share_their_parameters_end_with_eos(answered, tokenizer):
    """With `n` > 1, parameters that several requests share are not changed."""
    loops = 0
    for tokens, reason in zip(answered["several"]["all"], answered["several"]["reasons"], strict=True):
        assert reason in (["stop", None], ["length", None])
        if tokens[-1] == tokenizer.eos_token_id:
            loops += repetition_at_end(tokens[:-1], min_copies=6, min_length=16) is not None
            tokens = tokens[:-2]
        assert not repetition_at_end(tokens, min_copies=6, min_length=16)
    assert loops > 0


def test_a_grammar_is_never_left(answered, tokenizer):
    """The model loops on whitespace; the penalty brings the answer to its end, the ladder ends it half-way."""
    alone, penalised, stopped = (answered["json", name] for name in ("alone", "penalty", "stop"))
    assert alone["reason"][0] == "length"
    assert penalised["reason"][0] == "stop"
    answer = json.loads(tokenizer.decode(penalised["tokens"], skip_special_tokens=True))
    assert {name: type(value) for name, value in answer.items()} == {"a": int, "b": bool}
    assert stopped["reason"] == ["repetition", "repetition_detected"]
    assert stopped["tokens"] == alone["tokens"][: len(stopped["tokens"])]
