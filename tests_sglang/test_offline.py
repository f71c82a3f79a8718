"""The plug-in in `sglang.Engine`, with every text checked against the reference and rows without the penalty by the bit."""

from dataclasses import replace

import pytest
from engines import RETRACT, as_tasks, generate
from requests_and_truth import check_all, firsts, mixed_requests

from lz_penalty import LZPenaltyConfig

# Few slots, small chunks of prefill and a cache that does not hold the batch: requests wait and are retracted.
SMALL = {
    "max_running_requests": 12,
    "chunked_prefill_size": 64,
    "max_total_tokens": 480,
}


@pytest.mark.parametrize(
    "options",
    [{}, {"disable_overlap_schedule": True}, {"enable_mixed_chunk": True}],
    ids=["overlap", "no overlap", "mixed chunks"],
)
def test_mixed_requests(model, tokenizer, special, options):
    requests = mixed_requests(tokenizer, special, 100)
    result = generate(as_tasks(requests), env=RETRACT, **SMALL, **options)
    check_all(model, requests, firsts(result))
    counts = result["counts"]
    print(counts)
    assert counts["reloads"] > 20
    assert min(counts["slots taken again"], counts["rows without the penalty"]) > 0
    assert counts["rows that changed"] > 0
    assert bool(counts["mixed steps"]) == ("enable_mixed_chunk" in options)


def test_several_completions_and_a_server_default(model, tokenizer, special):
    """With `n > 1`; requests that say nothing get the default, and a request can refine it or switch it off."""
    server = '{"default": {"lz_preset": "guarded", "lz_penalty": 0.4}, "max_window_size": 700}'
    requests = [one for one in mixed_requests(tokenizer, special, 20, seed=1) if one.config is not None][:6]
    for one, fields in zip(requests, ({}, None, {"lz_penalty": 0}, {"lz_buffer_size": 3}), strict=False):
        one.fields = fields
    tasks = as_tasks(requests, n=3, temperature=0.8, top_k=1)
    result = generate(tasks, env={"LZ_PENALTY_SERVER": server}, max_running_requests=8)
    default = LZPenaltyConfig.guarded(strength=0.4, exempt_token_ids=special)
    for one, config in zip(requests, (default, default, None, replace(default, buffer_size=3)), strict=False):
        one.config = config
    for number in range(3):
        check_all(model, requests, [completions[number] for completions in result["tokens"]])
