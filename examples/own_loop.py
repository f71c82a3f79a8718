"""Write your own decoding loop: the op changes the logits in place, before any other step.

python examples/own_loop.py [MODEL]
"""

import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lz_penalty import LZPenaltyConfig, apply_lz_penalty_, bundled_model


@torch.no_grad()
def main(name: str = "") -> str:
    """Return a greedy continuation of a prompt."""
    name = name or str(bundled_model.path())
    model = AutoModelForCausalLM.from_pretrained(name)
    tokenizer = AutoTokenizer.from_pretrained(name)
    tokens = tokenizer("The old man looked at the sea, and said that", return_tensors="pt").input_ids  # [rows, length]
    starts = torch.full((tokens.shape[0],), tokens.shape[1])  # where the prompts end: they do not count
    config = LZPenaltyConfig.guarded(exempt_token_ids=[tokenizer.eos_token_id])
    for _ in range(100):
        logits = model(tokens).logits[:, -1].float()  # [rows, vocabulary]
        apply_lz_penalty_(logits, tokens, config=config, starts=starts)
        tokens = torch.cat([tokens, logits.argmax(-1, keepdim=True)], dim=1)
    return tokenizer.decode(tokens[0])


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
