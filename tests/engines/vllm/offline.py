"""Runs one offline vLLM engine: `python -m tests.engines.vllm.offline TASK.json RESULT.json`, called by `engines.generate`."""

import json
import sys
from pathlib import Path
from typing import Any

from lz_penalty import bundled_model
from lz_penalty.policy import counters


def fields_of(params: Any) -> dict[str, str]:
    """All fields of a caller's `SamplingParams` but those in which vLLM itself leaves something."""
    names = [name for name in params.__struct_fields__ if name not in ("output_kind", "structured_outputs")]
    return {name: repr(getattr(params, name)) for name in names}


def main(task: str, result: str) -> None:
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    given = json.loads(Path(task).read_text())
    model = str(bundled_model.path())
    llm = LLM(
        **{"model": model, "dtype": "float32", "enforce_eager": True, "disable_log_stats": False} | given["engine"]
    )
    requests = given["requests"]
    for request in requests:
        if "structured_outputs" in request:
            request["structured_outputs"] = StructuredOutputsParams(**request["structured_outputs"])
        if "logit_bias" in request:  # JSON has made texts of its keys
            request["logit_bias"] = {int(token): bias for token, bias in request["logit_bias"].items()}
    prompts = [{"prompt_token_ids": request.pop("prompt")} for request in requests]
    params = [SamplingParams(**request) for request in requests]
    before = list(map(fields_of, params))
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert list(map(fields_of, params)) == before
    tokens = [[list(completion.token_ids) for completion in output.outputs] for output in outputs]
    reasons = [[[one.finish_reason, one.stop_reason] for one in output.outputs] for output in outputs]
    llm.generate([{"prompt_token_ids": [5]}], SamplingParams(max_tokens=1), use_tqdm=False)  # shows that all have left
    metrics = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
    Path(result).write_text(
        json.dumps({"tokens": tokens, "reasons": reasons, "metrics": metrics, "counters": counters.totals()})
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
