"""Runs one SGLang engine: `python offline.py TASK.json RESULT.json`, called by `engines.generate`."""

import json
import sys
from pathlib import Path


def main(task: str, result: str) -> None:
    import sglang

    given = json.loads(Path(task).read_text())
    requests = given["requests"]
    prompts = [request.pop("prompt") for request in requests]
    count = requests[0].get("n", 1)
    processor = None
    if given["processor"]:
        from lz_penalty.engines.sglang.custom_processor import LZPenaltyLogitProcessor

        processor = LZPenaltyLogitProcessor.to_str()
    engine = sglang.Engine(**given["engine"])
    try:
        outputs = engine.generate(input_ids=prompts, sampling_params=requests, custom_logit_processor=processor)
    finally:
        engine.shutdown()
    tokens = [output["output_ids"] for output in outputs]
    tokens = [tokens[begin : begin + count] for begin in range(0, len(tokens), count)]
    Path(result).write_text(json.dumps({"tokens": tokens}))


if __name__ == "__main__":
    main(*sys.argv[1:])
