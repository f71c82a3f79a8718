"""The plug-in in `sglang.Engine`: every text equals the reference, and rows without the penalty stay bit-identical."""

import pytest

from tests.engines.sglang.engines import RETRACT, as_tasks, generate
from tests.support.requests_and_truth import check_all, mixed_requests

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
    assert check_all(model, requests, result["tokens"]) > 100
    counts = result["counts"]
    print(counts)
    assert counts["reloads"] > 20
    assert min(counts["slots taken again"], counts["rows without the penalty"]) > 0
    assert counts["rows that changed"] > 0
    assert bool(counts["mixed steps"]) == ("enable_mixed_chunk" in options)
