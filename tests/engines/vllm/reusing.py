"""Use each `SamplingParams` twice: `python -m tests.engines.vllm.reusing TASK.json RESULT.json`."""

import json
import sys
from pathlib import Path

from lz_penalty import bundled_model


def main(task: str, result: str) -> None:
    from vllm import LLM, SamplingParams

    from tests.engines.vllm.offline import fields_of

    given = json.loads(Path(task).read_text())
    llm = LLM(model=str(bundled_model.path()), dtype="float32", enforce_eager=True, **given["engine"])
    prompts = [{"prompt_token_ids": prompt} for prompt in given["prompts"]]
    found = []
    for fields in given["params"]:
        params = SamplingParams(**fields)
        extra_args, rounds, states = params.extra_args, [], [fields_of(params)]
        for _ in range(2):
            outputs = llm.generate(prompts, params, use_tqdm=False)
            rounds.append([[[list(one.token_ids), one.finish_reason] for one in output.outputs] for output in outputs])
            states.append(fields_of(params))
        found.append({"rounds": rounds, "states": states, "same_extra_args": params.extra_args is extra_args})
    Path(result).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
