"""The same class on vLLM's V2 runner, whose kernels run in Triton's interpreter here (its top-k kernel does not)."""

import pytest
from engines import V2, generate
from policy_truth import Truth
from requests_and_truth import as_tasks, check_all, firsts, mixed_requests
from test_policy import LOOPS, POLICIES, PROMPTS, SCHEMA, SHADOW, STOP, SUM

from lz_penalty.detection import repetition_at_end

ENGINE = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 256}
DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4, "prompt_lookup_min": 1}
NEW = 110
ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


def policy_tasks(tokenizer):
    """Every policy on some prompt, and ends of all kinds."""
    texts = [(PROMPTS[k % 5], fields) for k, fields in enumerate((*POLICIES, POLICIES[3], SHADOW))]
    texts[-2] = (PROMPTS[1], POLICIES[3])  # thinking that loops
    tasks = [{"prompt": text, "extra_args": fields} for text, fields in texts]
    tasks += [
        {"prompt": LOOPS, "extra_args": STOP, **more} for more in ({}, {"ignore_eos": True}, {"min_tokens": NEW - 2})
    ]
    tasks += [{"prompt": SUM, "extra_args": STOP, "structured_outputs": {"json": SCHEMA}}]
    return [
        {**task, "prompt": tokenizer(task["prompt"]).input_ids, "max_tokens": NEW, "temperature": 0} for task in tasks
    ]


@pytest.mark.parametrize("drafts", [None, DRAFTS], ids=["plain", "speculative"])
def test_mixed_requests(model, tokenizer, special, drafts):
    """Requests with a policy among them; without drafts in one process, as on one GPU, where all counters are seen."""
    requests, policies = mixed_requests(tokenizer, special, 24, seed=2, longest=60), policy_tasks(tokenizer)
    env = V2 | ({} if drafts else ONE_PROCESS)
    result = generate(as_tasks(requests, temperature=0) + policies, env=env, speculative_config=drafts, **ENGINE)
    outputs = firsts(result)
    check_all(model, requests, outputs[: len(requests)])
    if drafts:
        assert result["metrics"]["vllm:spec_decode_num_accepted_tokens"] > 0

    truth, forced, changed, steps = Truth(tokenizer, special, early=0 if drafts else 1), 0, 0, 0
    for task, output in zip(policies[:-1], outputs[len(requests) :], strict=False):
        more, would_change = truth.check_output(model, task["prompt"], task["extra_args"], output)
        forced += more
        if task["extra_args"] is SHADOW:
            changed, steps = changed + would_change, steps + len(output)
    assert forced > 0
    reasons = [reasons[0] for reasons in result["reasons"][-4:]]
    by_run, by_eos = ["repetition", "repetition_detected"], ["stop", None]
    if drafts:
        assert reasons == [by_eos, by_run, by_eos, ["length", None]]  # a grammar that forbids the end is not left
    else:
        assert reasons == [by_run] * 4
        assert result["counters"]["lz_thinking_ended"] == forced
        assert result["counters"]["lz_shadow_steps"] == steps
        assert abs(result["counters"]["lz_shadow_changed"] - changed) <= 1  # a near-tie
        assert changed > 0
    for output in () if drafts else outputs[-4:-1]:
        assert repetition_at_end(output, min_copies=6, min_length=16)
        assert not repetition_at_end(output[:-1], min_copies=6, min_length=16)
    assert all(len(output) < NEW - 2 for output in outputs[-4:-1])
