"""Ask a server for a completion with the penalty. The servers differ only in where the settings go.

python examples/http_client.py URL MODEL SERVER PROMPT
python examples/http_client.py http://localhost:8000/v1 Qwen/Qwen3-0.6B vllm "Once upon a time"
"""

import os
import sys
from typing import Any

from openai import OpenAI

SETTINGS = {"lz_preset": "guarded"}
EXTRA_BODY: dict[str, dict[str, Any]] = {
    "transformers": SETTINGS,  # python -m lz_penalty.engines.transformers serve MODEL
    "llama.cpp": SETTINGS,  # lz-penalty serve-llama model.gguf
    "mlx-lm": SETTINGS,  # lz-penalty serve-mlx --model MODEL
    "vllm": {"vllm_xargs": SETTINGS},
    "sglang": {"custom_params": SETTINGS},
}


def main(url: str, model: str, server: str, prompt: str) -> str:
    """Return the server's completion."""
    client = OpenAI(base_url=url, api_key=os.environ.get("OPENAI_API_KEY", "none"))
    answer = client.completions.create(
        model=model, prompt=prompt, max_tokens=200, temperature=0, extra_body=EXTRA_BODY[server]
    )
    return answer.choices[0].text


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
