"""mlx-lm's own functions with the processor: the same tokens as the Python reference, token for token."""

from dataclasses import replace

import mlx.core as mx
import pytest
from mlx_lm import batch_generate, generate, stream_generate
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import make_prompt_cache

from lz_penalty import LZPenaltyConfig
from lz_penalty.engines.mlx_lm import LZPenaltyProcessor
from tests.support.greedy import NEW, PRESETS, assert_same


@pytest.fixture(params=PRESETS, ids=str)
def config(request):
    return PRESETS[request.param]


def streamed(engine, prompt, processor, **options):
    """The responses of `stream_generate`."""
    given = {"logits_processors": [processor]} if processor else {}
    return list(stream_generate(*engine, prompt, max_tokens=NEW, **given, **options))


def tokens_of(responses):
    return [response.token for response in responses]


def test_stream_generate(engine, prompts, truth, config):
    for prompt in prompts:
        processor = LZPenaltyProcessor(config, tokenizer=engine[1])
        assert_same(tokens_of(streamed(engine, prompt, processor)), *truth(prompt, config))


def test_without_a_penalty_the_models_agree_and_the_penalty_matters(engine, prompts, truth):
    for prompt in prompts:
        assert_same(tokens_of(streamed(engine, prompt, None)), *truth(prompt, None))
    changed = [truth(prompt, None)[0] != truth(prompt, PRESETS["paper"])[0] for prompt in prompts]
    assert any(changed)


def test_generate(engine, prompts, truth):
    config = PRESETS["guarded"]
    processor = LZPenaltyProcessor(config, tokenizer=engine[1])
    text = generate(*engine, prompts[0], max_tokens=NEW, logits_processors=[processor])
    assert text == engine[1].decode([token for token in truth(prompts[0], config)[0] if token != 0])


def test_batch_generate(engine, prompts, truth, config):
    processor = LZPenaltyProcessor(config, tokenizer=engine[1])
    out = batch_generate(*engine, prompts, max_tokens=NEW, logits_processors=[processor], return_token_ids=True)
    for prompt, got in zip(prompts, out.token_ids, strict=True):
        want, margins = truth(prompt, config)
        assert_same(got, [token for token in want if token != 0], margins)


def test_batch_with_settings_per_sequence(engine, prompts, truth):
    """`BatchGenerator.insert`: one processor for each sequence, one of them none."""
    configs = [PRESETS["paper"], None, PRESETS["gated"], LZPenaltyConfig.sglang()]
    processors = [
        [LZPenaltyProcessor(config, tokenizer=engine[1], prompt_length=len(prompt))] if config else []
        for prompt, config in zip(prompts, configs, strict=True)
    ]
    generator = BatchGenerator(engine[0], max_tokens=NEW, stop_tokens=[[0]])
    ids = generator.insert(prompts, logits_processors=processors)
    got = {one: [] for one in ids}
    while responses := generator.next_generated():
        for response in responses:
            got[response.uid].append(response.token)
    generator.close()
    for prompt, config, one in zip(prompts, configs, ids, strict=True):
        assert_same(got[one], *truth(prompt, config))


@pytest.mark.parametrize("config", [LZPenaltyConfig.sglang(), replace(PRESETS["gated"], include_prompt=False)])
def test_without_the_prompt(engine, prompts, truth, config):
    learning = LZPenaltyProcessor(config, tokenizer=engine[1])
    for prompt in prompts:
        for processor in (learning, LZPenaltyProcessor(config, tokenizer=engine[1], prompt_length=len(prompt))):
            assert_same(tokens_of(streamed(engine, prompt, processor)), *truth(prompt, config))


@pytest.mark.parametrize("include_prompt", [True, False])
@pytest.mark.parametrize("config", [LZPenaltyConfig(strength=0.3, buffer_size=4), PRESETS["gated"]])
def test_prompt_cache(engine, prompts, truth, config, include_prompt):
    """The cache holds most of the prompt, so mlx-lm hands over the rest only."""
    config = replace(config, include_prompt=include_prompt)
    prompt = prompts[3]
    cache = make_prompt_cache(engine[0])
    engine[0](mx.array([prompt[:-5]]), cache=cache)
    processor = LZPenaltyProcessor(config, tokenizer=engine[1], cached_tokens=prompt[:-5], prompt_length=len(prompt))
    assert_same(tokens_of(streamed(engine, prompt[-5:], processor, prompt_cache=cache)), *truth(prompt, config))


@pytest.mark.parametrize("drafts", [1, 2, 5])
def test_speculative_decoding(engine, draft, prompts, truth, config, drafts):
    """Drafts are accepted and rejected, and the tokens are as without them."""
    taken = 0
    for prompt in prompts[:2]:
        processor = LZPenaltyProcessor(config, tokenizer=engine[1], cached_tokens=prompt[:-1])
        responses = streamed(engine, prompt, processor, draft_model=draft, num_draft_tokens=drafts)
        assert_same(tokens_of(responses), *truth(prompt, config))
        taken += sum(response.from_draft for response in responses)
    assert 0 < taken < 2 * NEW * drafts / (drafts + 1)
