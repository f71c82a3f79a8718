"""Generate a batch with transformers' continuous batching. The generation config carries the penalty's settings.

python examples/transformers_batching.py [MODEL]
"""

import sys

from transformers import AutoModelForCausalLM, AutoTokenizer, ContinuousBatchingConfig, GenerationConfig

from lz_penalty import bundled_model
from lz_penalty.engines import transformers as lz


def main(name: str = "") -> list[str]:
    """Return the continuations of four prompts."""
    name = name or str(bundled_model.path())
    model = AutoModelForCausalLM.from_pretrained(name)
    tokenizer = AutoTokenizer.from_pretrained(name)
    prompts = [tokenizer(text).input_ids for text in bundled_model.prompts()[:4]]

    lz.enable()
    settings = GenerationConfig(
        do_sample=False, max_new_tokens=100, eos_token_id=tokenizer.eos_token_id, lz_preset="guarded"
    )
    small = ContinuousBatchingConfig(
        num_blocks=32, max_batch_tokens=256
    )  # for a CPU; without it, the cache fills a GPU
    outputs = model.generate_batch(prompts, settings, small)
    return [tokenizer.decode(output.generated_tokens) for output in outputs.values()]


if __name__ == "__main__":
    print(*main(*sys.argv[1:]), sep="\n\n----\n\n")
