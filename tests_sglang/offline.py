"""Runs one SGLang engine: `python offline.py TASK.json RESULT.json`, called by `engines.generate`."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any


async def answer(engine: Any, request: dict[str, Any]) -> list[int] | str:
    """The tokens of one request, or the message with which it was refused, where that is expected."""
    from lz_penalty.engines.sglang.custom_processor import LZPenaltyLogitProcessor

    prompt, refused = request.pop("prompt"), request.pop("refused", False)
    processor = LZPenaltyLogitProcessor.to_str() if request.pop("processor", False) else None
    try:
        output = await engine.async_generate(
            input_ids=prompt, sampling_params=request, custom_logit_processor=processor
        )
    except ValueError as error:
        if not refused:
            raise
        return str(error)
    return output["output_ids"]


async def answers(engine: Any, requests: list[dict[str, Any]]) -> list[list[int] | str]:
    return await asyncio.gather(*(answer(engine, request) for request in requests))


def main(task: str, result: str) -> None:
    import sglang

    given = json.loads(Path(task).read_text())
    engine = sglang.Engine(**given["engine"])
    try:
        tokens = engine.loop.run_until_complete(answers(engine, given["requests"]))
    finally:
        engine.shutdown()
    Path(result).write_text(json.dumps({"tokens": tokens}))


if __name__ == "__main__":
    main(*sys.argv[1:])
