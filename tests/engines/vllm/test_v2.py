"""The processor on vLLM's V2 runner, whose kernels run in Triton's interpreter here (except the top-k kernel)."""

from types import SimpleNamespace

import pytest
import torch
from vllm import SamplingParams

from lz_penalty.detection import repetition_at_end
from lz_penalty.engines._requests import SettingsReader
from lz_penalty.engines.server import ServerSettings
from lz_penalty.engines.vllm._v2 import V2State
from lz_penalty.policy import settings_from_request
from tests.engines.vllm.engines import V2, WARM, generate
from tests.engines.vllm.test_policy import LOOPS, POLICIES, PROMPTS, SCHEMA, SHADOW, STOP, SUM
from tests.support.policy_truth import Truth
from tests.support.requests_and_truth import as_tasks, check_all, firsts, mixed_requests

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


def test_special_tokens_are_exempt_after_a_sleep():
    """vLLM's sleep discards the model's memory, and with it the arrays of the processor on the device."""
    token_ids, prompt_lengths = torch.tensor([[3, 4] * 50], dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    states = SimpleNamespace(
        device=torch.device("cpu"),
        max_num_reqs=1,
        all_token_ids=SimpleNamespace(gpu=token_ids),
        prompt_len=SimpleNamespace(gpu=prompt_lengths),
    )
    settings = SettingsReader(ServerSettings(), (3,), 1, states.device)
    state = V2State(settings, states, 0, SimpleNamespace(count_left=lambda: None))
    settings._exempt.fill_(-1)
    state.add_request(0, SamplingParams(extra_args={"lz_preset": "paper"}))
    state.before_step()
    row = torch.zeros(1, dtype=torch.int64)
    ctx = SimpleNamespace(pos=row + 99, expanded_idx_mapping=row, idx_mapping_np=row.numpy())
    logits = state.apply(torch.zeros((1, 50)), ctx)
    assert logits.nonzero().tolist() == [[0, 4]]


@pytest.mark.parametrize("drafts", [None, DRAFTS], ids=["plain", "speculative"])
def test_mixed_requests(model, tokenizer, special, drafts):
    """Requests with a policy among them; without drafts in one process, as on one GPU, where all counters are seen.

    The engine ends in a step that needs what was not compiled at the start.
    """
    requests, policies = mixed_requests(tokenizer, special, 24, seed=2, longest=60), policy_tasks(tokenizer)
    env = V2 | ({} if drafts else ONE_PROCESS)
    tasks = as_tasks(requests, temperature=0) + policies
    result = generate(tasks, env=env, speculative_config=drafts, logits_processors=[WARM], **ENGINE)
    outputs = firsts(result)
    assert check_all(model, requests, outputs[: len(requests)]) > 20
    if drafts:
        assert result["metrics"]["vllm:spec_decode_num_accepted_tokens"] > 0

    truth, forced, changed, steps = Truth(tokenizer, special, stop_adds=0 if drafts else 1), 0, 0, 0
    for task, output in zip(policies[:-1], outputs[len(requests) :], strict=False):
        asked = settings_from_request(task["extra_args"] or {})
        seen = truth.check_output(model, task["prompt"], asked, output).seen
        forced += seen["forced"]
        if task["extra_args"] is SHADOW:
            changed, steps = changed + seen["would differ"], steps + len(output)
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
