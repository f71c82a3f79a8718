"""Generate text with mlx-lm and the penalty, on a Mac or on Linux with mlx[cpu].

python examples/mlx_generate.py [MODEL]
"""

import sys

from mlx_lm import generate, load

from lz_penalty import LZPenaltyConfig, bundled_model
from lz_penalty.engines.mlx_lm import LZPenaltyProcessor


def main(name: str = "") -> list[str]:
    """Return the continuation of a prompt without and with the penalty."""
    model, tokenizer = load(name or str(bundled_model.path()))
    prompt = "The old man looked at the sea, and said that"
    processor = LZPenaltyProcessor(LZPenaltyConfig.guarded(), tokenizer=tokenizer)
    return [
        generate(model, tokenizer, prompt, max_tokens=200, logits_processors=processors)
        for processors in ([], [processor])
    ]


if __name__ == "__main__":
    print(*main(*sys.argv[1:]), sep="\n\n---- with the penalty:\n\n")
