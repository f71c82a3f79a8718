"""Decode greedily, with transformers and with a plain loop that applies the reference."""

from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from transformers import DynamicCache

from lz_penalty import LZPenaltyConfig
from lz_penalty.engines.transformers import special_token_ids
from tests.support import quick_or_deep
from tests.support.requests_and_truth import penalised
from tests.support.settings import UNGATED

NEW = quick_or_deep(32, 60)
PRESETS = {  # for short texts: the gate of `guarded` itself is closed there
    "paper": LZPenaltyConfig.paper(),
    "guarded": replace(UNGATED, strength=0.3),
    "gated": replace(UNGATED, strength=0.4, min_match_length=2, gate_low=0.0, gate_high=0.6, gate_window=16),
    "sglang": LZPenaltyConfig.sglang(include_prompt=True),
    "small window": LZPenaltyConfig(strength=0.3, window_size=40, buffer_size=4, escalation=1.0),
}


def plain_loop(model, prompt, config, new=NEW):
    """Decode one sequence greedily; return its tokens and, for each, the margin between the two best scores."""
    tokens, margins = _plain_loop(model, tuple(prompt), config, new)
    return list(tokens), margins


@lru_cache(maxsize=None)  # several files ask for the same outputs
def _plain_loop(model, prompt, config, new):
    cache = DynamicCache()

    @torch.no_grad()
    def logits_after(tokens):
        return model(torch.tensor([tokens]), past_key_values=cache).logits[0, -1].tolist()

    return reference_loop(logits_after, list(prompt), config, model.generation_config.eos_token_id, new)


def reference_loop(logits_after, prompt, config, end, new=NEW):
    """Decode greedily with any engine's logits: `logits_after` takes the prompt, then each chosen token."""
    tokens, margins = list(prompt), []
    scores = logits_after(tokens)
    while True:
        scores = penalised(scores, prompt, tokens[len(prompt) :], config)
        second, first = sorted(scores)[-2:]
        margins.append(first - second)
        tokens.append(scores.index(first))
        if tokens[-1] == end or len(margins) == new:
            return tokens[len(prompt) :], margins
        scores = logits_after(tokens[-1:])


def assert_same(got, want, margins):
    """Assert that the tokens are equal; a difference at a near-tie of the two best scores asks for another prompt."""
    for i, (a, b) in enumerate(zip(got, want, strict=False)):
        if a != b:
            assert margins[i] < 1e-3, f"token {i}: {a} instead of {b}, margin {margins[i]:.4f}"
            pytest.fail(f"near-tie at token {i} (margin {margins[i]:.1e}): choose another prompt")
    assert abs(len(got) - len(want)) == 0


def exempt(config, tokenizer):
    return replace(config, exempt_token_ids=special_token_ids(tokenizer))


def generate(model, ids, processor, mask=None, **kwargs):
    inputs = torch.tensor(ids)
    options = {"do_sample": False, "max_new_tokens": NEW, "pad_token_id": 1} | kwargs
    mask = torch.ones_like(inputs) if mask is None else mask
    given = {"logits_processor": [processor]} if processor else {}
    return model.generate(inputs, attention_mask=mask, **given, **options)


def cut(row, prompt_width, end=0):
    out = row[prompt_width:].tolist()
    return out[: out.index(end) + 1] if end in out else out


def left_padded(prompts, pad=1):
    width = max(map(len, prompts))
    ids = [[pad] * (width - len(prompt)) + prompt for prompt in prompts]
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return ids, mask
