"""Two ranks on the CPU: tensor-parallel ones keep the same histories, data-parallel ones each its own."""

import pytest

from tests.engines.sglang.engines import as_tasks, generate
from tests.engines.sglang.policy_requests import check, policy_requests
from tests.support.policy_truth import Truth
from tests.support.requests_and_truth import check_all, mixed_requests


@pytest.mark.parametrize("ranks", [{"tp_size": 2}, {"dp_size": 2}], ids=["tensor", "data"])
def test_mixed_requests(model, tokenizer, special, ranks):
    requests, policies = mixed_requests(tokenizer, special, 24, seed=5), policy_requests(tokenizer, 9, scripts=False)
    env = {"SGLANG_CPU_OMP_THREADS_BIND": "0|0"}
    result = generate(as_tasks([*requests, *policies]), env=env, max_running_requests=8, **ranks)
    check_all(model, requests, result["tokens"][:24])
    truth = Truth(tokenizer, special)
    for request, output, reason in zip(policies, result["tokens"][24:], result["reasons"][24:], strict=True):
        check(truth, model, request, output, reason)
