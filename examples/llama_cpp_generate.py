"""Generate text with llama-cpp-python and the penalty.

python examples/llama_cpp_generate.py MODEL.gguf
"""

import sys

from llama_cpp import Llama

from lz_penalty import LZPenaltyConfig
from lz_penalty.engines.llama_cpp import LZPenaltyProcessors


def main(path: str) -> list[str]:
    """Return the continuation of a prompt without and with the penalty."""
    llm = Llama(path, n_ctx=1024, verbose=False)
    prompt = "The old man looked at the sea, and said that"
    return [
        llm(prompt, max_tokens=200, temperature=0, repeat_penalty=1, logits_processor=processors)["choices"][0]["text"]
        for processors in (None, LZPenaltyProcessors(llm, LZPenaltyConfig.guarded()))
    ]


if __name__ == "__main__":
    print(*main(*sys.argv[1:]), sep="\n\n---- with the penalty:\n\n")
