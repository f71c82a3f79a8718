"""The plug-in in `vllm.LLM`, on the V1 runner, with every step checked inside the engine and every text afterwards."""

import json
from dataclasses import replace

import pytest

from tests.engines.vllm.engines import PROCESSOR, SPYING, EngineFailed, generate
from tests.support.requests_and_truth import as_tasks, check_all, firsts, mixed_requests
from tests.support.settings import UNGATED

# Few slots, small chunks of prefill and a cache that does not hold the batch: requests wait, move and are preempted.
SMALL = {
    "max_num_seqs": 12,
    "max_num_batched_tokens": 64,
    "block_size": 32,
    "num_gpu_blocks_override": 36,
    "max_model_len": 512,
}


def test_mixed_requests_with_preemption(model, tokenizer, special):
    requests = mixed_requests(tokenizer, special, 80)
    result = generate(as_tasks(requests), logits_processors=[SPYING], **SMALL)
    assert result["metrics"]["vllm:num_preemptions"] > 0
    assert check_all(model, requests, firsts(result)) > 100


def test_several_completions_and_a_server_default(model, tokenizer, special):
    """With `n > 1`; requests that say nothing get the default, and a request can refine it or switch it off."""
    default = replace(UNGATED, strength=0.4)
    server = json.dumps({"default": default.to_request(), "max_window_size": 700})
    requests = [one for one in mixed_requests(tokenizer, special, 20, seed=1) if one.config is not None][:6]
    for one, fields in zip(requests, ({}, None, {"lz_penalty": 0}, {"lz_buffer_size": 3}), strict=False):
        one.fields = fields
    tasks = as_tasks(requests)
    for task in tasks:
        task |= {"n": 3, "temperature": 0.8, "top_k": 1}
    result = generate(tasks, env={"LZ_PENALTY_SERVER": server}, logits_processors=[SPYING], max_num_seqs=8)
    default = replace(default, exempt_token_ids=special)
    for one, config in zip(requests, (default, default, None, replace(default, buffer_size=3)), strict=False):
        one.config = config
    for number in range(3):
        check_all(model, requests, [completions[number] for completions in result["tokens"]])


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"logits_processors": [SPYING, PROCESSOR]}, "loaded 2 times"),
        ({"env": {"LZ_PENALTY_SERVER": '{"default": {"lz_preset": "gaurded"}}'}}, "lz_preset = 'gaurded'"),
    ],
    ids=["twice", "bad default"],
)
def test_refuses_to_start(how, message):
    """The other reasons are in test_startup.py, without a whole engine."""
    with pytest.raises(EngineFailed, match=message):
        generate([{"prompt": [5, 6, 7], "max_tokens": 1}], **how)
