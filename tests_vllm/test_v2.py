"""The same class on vLLM's V2 runner, whose kernels run in Triton's interpreter here (its top-k kernel does not)."""

import pytest
from engines import V2, generate
from requests_and_truth import as_tasks, check_all, firsts, mixed_requests

ENGINE = {"env": V2, "max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 256}
DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4, "prompt_lookup_min": 1}


@pytest.mark.parametrize("drafts", [None, DRAFTS], ids=["plain", "speculative"])
def test_mixed_requests(model, tokenizer, special, drafts):
    requests = mixed_requests(tokenizer, special, 24, seed=2, longest=60)
    result = generate(as_tasks(requests, temperature=0), speculative_config=drafts, **ENGINE)
    check_all(model, requests, firsts(result))
    if drafts:
        assert result["metrics"]["vllm:spec_decode_num_accepted_tokens"] > 0
