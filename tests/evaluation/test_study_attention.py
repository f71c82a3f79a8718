"""The study's attention and cache on a CPU, against those of transformers."""

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from lz_penalty.evaluation.study.fast_attention import NAME, cache_with_room, grouped_attention, use_fast_attention

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
def logits(model, cache, steps):
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


@pytest.fixture
def left(monkeypatch):
    """The calls that are left to PyTorch's attention."""
    calls, sdpa = [], ALL_ATTENTION_FUNCTIONS["sdpa"]

    def noting(*given, **options):
        calls.append(given)
        return sdpa(*given, **options)

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "sdpa", noting)
    return calls


def check(model, left, steps):
    want = logits(model, DynamicCache(config=model.config), steps)
    use_fast_attention(model)
    assert model.config._attn_implementation == NAME
    left.clear()
    for one, other in zip(logits(model, cache_with_room(model), steps), want, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
    assert len(left) == model.config.num_hidden_layers  # the prompts alone


@pytest.mark.parametrize("shared", [1, 2])
def test_the_logits_are_the_same(left, shared):
    check(llama(shared), left, 300)


@torch.no_grad()
def test_an_empty_prompt_beside_one_of_a_single_token():
    """PyTorch gives 0 for a row that sees nothing; NaN would stay in the cache."""
    model = llama(2)
    use_fast_attention(model)
    cache, mask = cache_with_room(model), torch.tensor([[0], [1]])
    for _ in range(3):
        out = model(torch.full((2, 1), 5), attention_mask=mask, past_key_values=cache, use_cache=True).logits
        assert out.isfinite().all()
        mask = torch.cat([mask, torch.ones(2, 1, dtype=torch.long)], 1)


def test_a_sliding_window(left):
    """Its layers keep their own cache; the mask says what is out of sight."""
    torch.manual_seed(0)
    check(MistralForCausalLM(MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=16)).eval(), left, 60)


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
    plain = {"scaling": 1.0}
    assert grouped_attention(model, query, key, key, torch.zeros(2, 1, 1, 5), **plain) == plain
    assert grouped_attention(model, query, key, torch.zeros(2, 2, 5, 4), None, **plain) == plain
    assert grouped_attention(model, *[one.bfloat16() for one in (query, key, key)], None, **plain) == plain
