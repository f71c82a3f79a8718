"""Policies, the ladder and shadow mode in `sglang.Engine`. Every token is compared with `policy_truth`."""

from collections import Counter

import pytest

from tests.engines.sglang.engines import RETRACT, as_tasks, generate
from tests.engines.sglang.policy_requests import check, policy_requests
from tests.engines.sglang.test_offline import SMALL
from tests.support.policy_truth import Truth


@pytest.mark.parametrize("options", [{}, {"enable_mixed_chunk": True}], ids=["overlap", "mixed chunks"])
def test_policies(model, tokenizer, special, options):
    """Run requests with policies beside others, with small chunks of prefill and with retractions.

    With mixed chunks a grammar makes texts change their sections. Without mixed chunks only a policy makes a step sample
    late.
    """
    scripts = "enable_mixed_chunk" in options
    requests = policy_requests(tokenizer, 33, scripts)
    result = generate(as_tasks(requests), env=RETRACT, **SMALL, **options)
    truth = Truth(tokenizer, special)
    seen, counts = Counter(), result["counts"]
    for request, output, reason in zip(requests, result["tokens"], result["reasons"], strict=True):
        seen += check(truth, model, request, output, reason)
    print(seen, counts)
    assert min(seen[name] for name in ("thinking", "answer", "code", "tool_call", "table")) > 20
    assert seen["shadow"] > 20
    assert min(seen["forced"], seen["stopped"]) > 1  # the marker is one token
    assert seen["turns"] > (20 if scripts else 3)
    assert seen["near-ties"] <= 3
    assert counts["reloads"] > 20
    assert bool(counts["mixed steps"]) == scripts
