"""Give each section its own penalty: code and tool calls have none, tables have the failsafe preset.

python examples/policy_sections.py [MODEL]
"""

import sys

from transformers import AutoModelForCausalLM, AutoTokenizer

from lz_penalty import LZPenaltyConfig, bundled_model
from lz_penalty.engines.transformers import LZPolicyLogitsProcessor
from lz_penalty.policy import Policy


def main(name: str = "") -> str:
    """Return a continuation under the default policy with a weaker penalty on the answer."""
    name = name or str(bundled_model.path())
    model = AutoModelForCausalLM.from_pretrained(name)
    tokenizer = AutoTokenizer.from_pretrained(name)
    inputs = tokenizer("The old man looked at the sea, and said that", return_tensors="pt")
    processor = LZPolicyLogitsProcessor(Policy(answer=LZPenaltyConfig.guarded(strength=0.2)), tokenizer=tokenizer)
    output = model.generate(**inputs, do_sample=False, max_new_tokens=200, logits_processor=[processor])
    return tokenizer.decode(output[0], skip_special_tokens=True)


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
