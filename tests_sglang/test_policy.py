"""Policies, the ladder and shadow mode in `sglang.Engine`, with every token checked against a plain loop."""

import pytest
from engines import RETRACT, as_tasks, generate
from policy_truth import Truth, policy_requests
from test_offline import SMALL


@pytest.mark.parametrize("options", [{}, {"enable_mixed_chunk": True}], ids=["overlap", "mixed chunks"])
def test_policies(model, tokenizer, special, options):
    """Beside requests with one penalty and with none, with small chunks of prefill and retractions."""
    requests = policy_requests(tokenizer, 66, seed=len(options))
    result = generate(as_tasks(requests), env=RETRACT, **SMALL, **options)
    truth = Truth(model, tokenizer, special)
    for request, output, reason in zip(requests, result["tokens"], result["reasons"], strict=True):
        truth.check(request, output, reason)
    print(truth.seen, result["counts"])
    seen = truth.seen
    assert min(seen[name] for name in ("thinking", "answer", "code", "tool_call", "table")) > 50
    assert min(seen["turns"], seen["would differ"]) > 20
    assert min(seen["ended thinking"], seen["stopped"]) > 3
    assert seen["near-ties"] <= 3
    assert result["counts"]["reloads"] > 20
