"""Runs one SGLang engine: `python -m tests.engines.sglang.offline TASK.json RESULT.json`, called by `engines.generate`."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any


async def answer(engine: Any, request: dict[str, Any]) -> tuple[list[int] | str, dict[str, Any] | None]:
    """Tokens and finish reason of one request, or the message with which it was refused, where that is expected."""
    prompt, refused = request.pop("prompt"), request.pop("refused", False)
    try:
        output = await engine.async_generate(input_ids=prompt, sampling_params=request)
    except ValueError as error:
        if not refused:
            raise
        return str(error), None
    return output["output_ids"], output["meta_info"]["finish_reason"]


async def answers(engine: Any, requests: list[dict[str, Any]]) -> list[Any]:
    return await asyncio.gather(*(answer(engine, request) for request in requests))


def main(task: str, result: str) -> None:
    import sglang

    given = json.loads(Path(task).read_text())
    engine = sglang.Engine(**given["engine"])
    try:
        answered = engine.loop.run_until_complete(answers(engine, given["requests"]))
    finally:
        engine.shutdown()
    Path(result).write_text(json.dumps(dict(zip(("tokens", "reasons"), zip(*answered), strict=True))))


if __name__ == "__main__":
    main(*sys.argv[1:])
