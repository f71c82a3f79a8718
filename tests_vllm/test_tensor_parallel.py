"""Two tensor-parallel ranks on the CPU: both keep the same state and choose the same tokens."""

from engines import SPYING, generate
from requests_and_truth import as_tasks, check_all, firsts, mixed_requests


def test_mixed_requests(model, tokenizer, special):
    requests = mixed_requests(tokenizer, special, 20, seed=5)
    result = generate(
        as_tasks(requests),
        env={"VLLM_CPU_OMP_THREADS_BIND": "nobind"},
        tensor_parallel_size=2,
        max_num_seqs=8,
        max_model_len=512,
        logits_processors=[SPYING],
    )
    check_all(model, requests, firsts(result))
