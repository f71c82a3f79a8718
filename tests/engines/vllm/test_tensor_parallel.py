"""Two tensor-parallel ranks on the CPU: both keep the same state and choose the same tokens."""

from lz_penalty.policy import settings_from_request
from tests.engines.vllm.engines import SPYING, generate
from tests.engines.vllm.test_policy import LOOPS, POLICIES, PROMPTS, STOP
from tests.support.policy_truth import Truth
from tests.support.requests_and_truth import as_tasks, check_all, firsts, mixed_requests


def test_mixed_requests(model, tokenizer, special):
    requests = mixed_requests(tokenizer, special, 20, seed=5)
    policies = [*zip(PROMPTS, POLICIES, strict=False), (LOOPS, STOP)]
    tasks = [
        {"prompt": tokenizer(text).input_ids, "extra_args": fields, "max_tokens": 100, "temperature": 0}
        for text, fields in policies
    ]
    result = generate(
        as_tasks(requests) + tasks,
        env={"VLLM_CPU_OMP_THREADS_BIND": "nobind"},
        tensor_parallel_size=2,
        max_num_seqs=8,
        max_model_len=512,
        logits_processors=[SPYING],
    )
    outputs, truth = firsts(result), Truth(tokenizer, special)
    check_all(model, requests, outputs[: len(requests)])
    for task, output in zip(tasks, outputs[len(requests) :], strict=True):
        truth.check_output(model, task["prompt"], settings_from_request(task["extra_args"] or {}), output)
    assert result["reasons"][-1] == [["stop", None]]
