"""The study's attention and cache on a CPU, against those of transformers."""

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from lz_penalty.study.fast_attention import NAME, cache_with_room, grouped_attention, use_fast_attention

SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "head_dim": 8,
}


def llama(shared):
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=shared)).eval()


@torch.no_grad()
def logits(model, cache, steps=300):
    """Of 5 rows with left padding, some of which leave on the way; the tokens are the same whatever the model says."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 50, (5, 7), generator=generator)
    mask = (torch.arange(7) >= torch.tensor([[0], [3], [6], [1], [0]])).long()
    out = []
    for step in range(steps):
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        made = model(ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True).logits
        out.append(made[:, -1])
        if step in (20, 100):
            kept = torch.tensor([0, 2, 3])[: len(mask) - 1]
            cache.batch_select_indices(kept)
            mask = mask[kept]
        ids = torch.randint(0, 50, (len(mask), 1), generator=generator)
        mask = torch.cat([mask, torch.ones_like(ids)], 1)
    return out


@pytest.mark.parametrize("shared", [1, 2])
def test_the_logits_are_the_same(shared):
    model = llama(shared)
    want = logits(model, DynamicCache(config=model.config))
    use_fast_attention(model)
    assert model.config._attn_implementation == NAME
    for one, other in zip(logits(model, cache_with_room(model)), want, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


def test_a_sliding_window():
    """Its layers keep their own cache; the mask says what is out of sight."""
    torch.manual_seed(0)
    model = MistralForCausalLM(MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=16)).eval()
    want = logits(model, DynamicCache(config=model.config), 60)
    use_fast_attention(model)
    assert model.config._attn_implementation == NAME
    for one, other in zip(logits(model, cache_with_room(model), 60), want, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


def test_what_is_left_to_pytorch(monkeypatch):
    model = llama(4)
    use_fast_attention(model)
    assert model.config._attn_implementation == "sdpa"  # no heads to share
    eager = LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=2, attn_implementation="eager"))
    use_fast_attention(eager)
    assert eager.config._attn_implementation == "eager"
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "sdpa", lambda *given, **options: options)
    query, key = torch.zeros(2, 4, 1, 8), torch.zeros(2, 2, 5, 8)
    for options in ({"scaling": 1.0, "softcap": 50.0}, {"scaling": None}):
        assert grouped_attention(model, query, key, key, None, **options) == options
