"""Generate text with SGLang's offline engine. SGLang finds the plug-in; each request carries its settings.

python examples/sglang_offline.py [MODEL]
"""

import sys
from typing import Any

import sglang

from lz_penalty import bundled_model


def main(name: str = "", **engine: Any) -> list[str]:
    """Return the continuation of a prompt without and with the penalty, in one batch."""
    name = name or str(bundled_model.path())
    llm = sglang.Engine(model_path=name, **engine)
    prompt = "The old man looked at the sea, and said that"
    settings = [
        {"temperature": 0, "max_new_tokens": 200},
        {"temperature": 0, "max_new_tokens": 200, "custom_params": {"lz_preset": "guarded"}},
    ]
    try:
        return [output["text"] for output in llm.generate([prompt, prompt], settings)]
    finally:
        llm.shutdown()


if __name__ == "__main__":
    print(*main(*sys.argv[1:]), sep="\n\n---- with the penalty:\n\n")
