"""A caller's `SamplingParams` are used again and stay as they are, however a request is ended."""

import json

import pytest
from vllm import SamplingParams

from lz_penalty.engines.vllm import LZPenaltyLogitsProcessor
from tests.engines.vllm.engines import reuse
from tests.engines.vllm.offline import fields_of
from tests.engines.vllm.test_policy import LOOPS
from tests.engines.vllm.test_policy_contract import EOS, STOP

LADDER = {"extra_args": STOP, "temperature": 0, "max_tokens": 120}
WAYS = (
    LADDER | {"ignore_eos": True, "min_tokens": 60},
    LADDER | {"min_tokens": 60, "stop_token_ids": [7]},
    LADDER | {"n": 3, "temperature": 0.05},
    LADDER | {"n": 2, "temperature": 0.05, "seed": 5, "ignore_eos": True},
)
ENVIRONMENTS = {
    "one process": ({"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}, {"distributed_executor_backend": "uni"}),
    "scheduler apart": ({}, {}),
    "with a stop token": ({"LZ_PENALTY_SERVER": json.dumps({"stop_token_id": 3})}, {}),
}
ENDS = {
    "one process": ["repetition", "repetition"],
    "scheduler apart": ["repetition", "stop"],
    "with a stop token": ["stop", "stop"],
}


@pytest.mark.parametrize("place", ENVIRONMENTS)
def test_used_twice(tokenizer, place):
    env, engine = ENVIRONMENTS[place]
    prompts = [tokenizer(LOOPS).input_ids, tokenizer("The old man looked at the sea").input_ids]
    found = reuse(prompts, WAYS, env, max_num_seqs=8, **engine)
    for one in found:
        before, once, twice = one["states"]
        assert before == once == twice
        assert one["same_extra_args"]
    for one, end in zip(found, ENDS[place], strict=False):  # the greedy ones
        first, second = one["rounds"]
        assert first == second
        assert [reason for _, reason in first[0]] == [end]


def test_a_copy_that_vllm_did_not_ask_for():
    """vLLM does not copy a request that is refused after our validation. The caller's next copy is the caller's own."""
    params = SamplingParams(ignore_eos=True, min_tokens=5, max_tokens=90, extra_args=STOP)
    before = fields_of(params)
    LZPenaltyLogitsProcessor.validate_params(params)
    assert fields_of(params) == fields_of(params.clone()) == before
    other = SamplingParams(ignore_eos=True, min_tokens=5, max_tokens=90)
    LZPenaltyLogitsProcessor.validate_params(other)
    other = other.clone()
    other.update_from_generation_config({}, EOS)
    assert other.min_tokens == 5
