"""Generate text with Hugging Face transformers and the penalty. The bundled model needs no network.

python examples/transformers_generate.py [MODEL]
"""

import sys

from transformers import AutoModelForCausalLM, AutoTokenizer

from lz_penalty import LZPenaltyConfig, bundled_model
from lz_penalty.engines.transformers import LZPenaltyLogitsProcessor


def main(name: str = "") -> list[str]:
    """Return the continuation of a prompt without and with the penalty."""
    name = name or str(bundled_model.path())  # or any model of the hub, such as Qwen/Qwen3-0.6B
    model = AutoModelForCausalLM.from_pretrained(name)
    tokenizer = AutoTokenizer.from_pretrained(name)
    inputs = tokenizer("The old man looked at the sea, and said that", return_tensors="pt")

    processor = LZPenaltyLogitsProcessor(LZPenaltyConfig.guarded(), tokenizer=tokenizer)
    outputs = [
        model.generate(**inputs, do_sample=False, max_new_tokens=200, logits_processor=processors)
        for processors in ([], [processor])
    ]
    return [tokenizer.decode(output[0], skip_special_tokens=True) for output in outputs]


if __name__ == "__main__":
    print(*main(*sys.argv[1:]), sep="\n\n---- with the penalty:\n\n")
