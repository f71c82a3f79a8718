"""Generate text with vLLM's offline engine. The engine loads the processor; each request carries its settings.

python examples/vllm_offline.py [MODEL]
"""

import sys
from typing import Any

from vllm import LLM, SamplingParams

from lz_penalty import bundled_model


def main(name: str = "", **engine: Any) -> list[str]:
    """Return the continuation of a prompt without and with the penalty, in one batch."""
    name = name or str(bundled_model.path())
    llm = LLM(name, logits_processors=["lz_penalty.engines.vllm:LZPenaltyLogitsProcessor"], **engine)
    prompt = "The old man looked at the sea, and said that"
    settings = [
        SamplingParams(temperature=0, max_tokens=200),
        SamplingParams(temperature=0, max_tokens=200, extra_args={"lz_preset": "guarded"}),
    ]
    return [output.outputs[0].text for output in llm.generate([prompt, prompt], settings)]


if __name__ == "__main__":
    print(*main(*sys.argv[1:]), sep="\n\n---- with the penalty:\n\n")
