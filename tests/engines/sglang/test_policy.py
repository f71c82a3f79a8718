"""Policies, the ladder and shadow mode in `sglang.Engine`, with every token checked against a plain loop."""

import pytest

from tests.engines.sglang.engines import RETRACT, as_tasks, generate
from tests.engines.sglang.policy_truth import Truth, policy_requests
from tests.engines.sglang.test_offline import SMALL


@pytest.mark.parametrize("options", [{}, {"enable_mixed_chunk": True}], ids=["overlap", "mixed chunks"])
def test_policies(model, tokenizer, special, options):
    """Beside requests with one penalty and with none, with small chunks of prefill and retractions.

    With mixed chunks a grammar makes texts change their sections; without it, no step samples late but for a policy.
    """
    scripts = "enable_mixed_chunk" in options
    requests = policy_requests(tokenizer, 33, scripts)
    result = generate(as_tasks(requests), env=RETRACT, **SMALL, **options)
    truth = Truth(model, tokenizer, special)
    for request, output, reason in zip(requests, result["tokens"], result["reasons"], strict=True):
        truth.check(request, output, reason)
    seen, counts = truth.seen, result["counts"]
    print(seen, counts)
    assert min(seen[name] for name in ("thinking", "answer", "code", "tool_call", "table")) > 20
    assert seen["would differ"] > 20
    assert min(seen["ended thinking"], seen["stopped"]) > 1
    assert seen["turns"] > (20 if scripts else 3)
    assert seen["near-ties"] <= 3
    assert counts["reloads"] > 20
    assert bool(counts["mixed steps"]) == scripts
