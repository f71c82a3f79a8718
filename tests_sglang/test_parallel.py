"""Two ranks on the CPU: tensor-parallel ones keep the same histories, data-parallel ones each its own."""

import pytest
from engines import as_tasks, generate
from requests_and_truth import check_all, mixed_requests


@pytest.mark.parametrize("ranks", [{"tp_size": 2}, {"dp_size": 2}], ids=["tensor", "data"])
def test_mixed_requests(model, tokenizer, special, ranks):
    requests = mixed_requests(tokenizer, special, 24, seed=5)
    result = generate(as_tasks(requests), env={"SGLANG_CPU_OMP_THREADS_BIND": "0|0"}, max_running_requests=8, **ranks)
    check_all(model, requests, result["tokens"])
