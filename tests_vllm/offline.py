"""Runs one offline vLLM engine: `python offline.py TASK.json RESULT.json`, called by `engines.generate`."""

import json
import sys
from pathlib import Path

from lz_penalty import bundled_model


def main(task: str, result: str) -> None:
    from vllm import LLM, SamplingParams

    given = json.loads(Path(task).read_text())
    model = str(bundled_model.path())
    llm = LLM(
        **{"model": model, "dtype": "float32", "enforce_eager": True, "disable_log_stats": False} | given["engine"]
    )
    requests = given["requests"]
    prompts = [{"prompt_token_ids": request.pop("prompt")} for request in requests]
    outputs = llm.generate(prompts, [SamplingParams(**request) for request in requests], use_tqdm=False)
    tokens = [[list(completion.token_ids) for completion in output.outputs] for output in outputs]
    reasons = [[[one.finish_reason, one.stop_reason] for one in output.outputs] for output in outputs]
    metrics = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
    Path(result).write_text(json.dumps({"tokens": tokens, "reasons": reasons, "metrics": metrics}))


if __name__ == "__main__":
    main(*sys.argv[1:])
