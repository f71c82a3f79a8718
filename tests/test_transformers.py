"""The transformers plug-in in the real engine, on the bundled model, against a plain loop with the reference."""

import json
import math

import pytest
import torch
from cases import settings_of
from greedy import PRESETS, assert_same, cut, exempt, generate, left_padded, plain_loop
from transformers import GenerationConfig

from lz_penalty import LZPenaltyConfig, LZPenaltyError, bundled_model, reference
from lz_penalty.engines import transformers as lz
from lz_penalty.engines.transformers import LZPenaltyLogitsProcessor, special_token_ids


@pytest.mark.parametrize("name", PRESETS)
def test_one_sequence(model, tokenizer, prompts, name):
    processor = LZPenaltyLogitsProcessor(PRESETS[name], tokenizer=tokenizer)
    for prompt in prompts:
        want, margins = plain_loop(model, prompt, exempt(PRESETS[name], tokenizer))
        assert_same(cut(generate(model, [prompt], processor)[0], len(prompt)), want, margins)


@pytest.mark.parametrize("name", ["paper", "guarded"])
def test_left_padded_batch(model, tokenizer, prompts, name):
    processor = LZPenaltyLogitsProcessor(PRESETS[name], tokenizer=tokenizer)
    ids, mask = left_padded(prompts)
    out = generate(model, ids, processor, mask)
    for row, prompt in zip(out, prompts, strict=True):
        want, margins = plain_loop(model, prompt, exempt(PRESETS[name], tokenizer))
        assert_same(cut(row, len(ids[0])), want, margins)


def test_rows_that_finish_early_do_not_disturb_the_others(model, tokenizer):
    problems = ["Question: What is 2 + 3?\n", "Question: Every blick is a rint. Must a blick be a rint?\n"]
    prompts = [tokenizer(text).input_ids for text in problems] + [tokenizer(bundled_model.prompts()[0]).input_ids]
    processor = LZPenaltyLogitsProcessor(PRESETS["guarded"], tokenizer=tokenizer)
    ids, mask = left_padded(prompts)
    out = generate(model, ids, processor, mask, max_new_tokens=120)
    lengths = [len(cut(row, len(ids[0]))) for row in out]
    assert min(lengths) < max(lengths)
    for row, prompt in zip(out, prompts, strict=True):
        want, margins = plain_loop(model, prompt, exempt(PRESETS["guarded"], tokenizer), new=120)
        assert_same(cut(row, len(ids[0])), want, margins)


def test_pad_token_that_is_the_end_token_is_stripped_only_in_front(model):
    processor = LZPenaltyLogitsProcessor(LZPenaltyConfig(buffer_size=2, strength=1.0), pad_token_id=0)
    scores = torch.zeros(2, 16)
    padded = processor(torch.tensor([[0, 0, 5, 6, 0, 5, 6], [5, 6, 0, 5, 6, 0, 5]]), scores)
    want = reference.penalise([0.0] * 16, [5, 6, 0, 5, 6], strength=1.0, buffer_size=2)
    assert padded[0].tolist() == pytest.approx(want)
    assert padded[1, 0] < 0  # inside a row the token counts
    assert not scores.any()  # a copy was returned


def test_prompt_left_out(model, tokenizer, prompts):
    config = LZPenaltyConfig.sglang(strength=0.4)
    with pytest.raises(LZPenaltyError, match="prompt_length"):
        LZPenaltyLogitsProcessor(config)
    prompt = prompts[3]
    processor = LZPenaltyLogitsProcessor(config, tokenizer=tokenizer, prompt_length=len(prompt))
    want, margins = plain_loop(model, prompt, exempt(config, tokenizer))
    assert_same(cut(generate(model, [prompt], processor)[0], len(prompt)), want, margins)


def test_assisted_and_prompt_lookup_decoding(model, tokenizer, prompts):
    processor = LZPenaltyLogitsProcessor(PRESETS["guarded"], tokenizer=tokenizer)
    for prompt in prompts[:2]:
        want, margins = plain_loop(model, prompt, exempt(PRESETS["guarded"], tokenizer))
        for how in ({"prompt_lookup_num_tokens": 4}, {"assistant_model": model}):
            out = generate(model, [prompt], processor, **how)
            assert_same(cut(out[0], len(prompt)), want, margins)


def test_static_cache(model, tokenizer, prompts):
    processor = LZPenaltyLogitsProcessor(PRESETS["guarded"], tokenizer=tokenizer)
    want, margins = plain_loop(model, prompts[1], exempt(PRESETS["guarded"], tokenizer))
    out = generate(model, [prompts[1]], processor, cache_implementation="static", disable_compile=True)
    assert_same(cut(out[0], len(prompts[1])), want, margins)


@torch.no_grad()
def plain_beam_search(model, prompt, config, beams, new):
    """Beam search of one sequence without early end: sums of log-probabilities of the penalised scores."""
    hypotheses = [(0.0, list(prompt))]
    for _ in range(new):
        grown = []
        for score, tokens in hypotheses:
            log_probs = model(torch.tensor([tokens])).logits[0, -1].log_softmax(-1).tolist()
            scores = reference.penalise(log_probs, tokens, strength=config.strength, **settings_of(config))
            best = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)[: 2 * beams]
            grown += [(score + scores[token], [*tokens, token]) for token in best if math.isfinite(scores[token])]
        hypotheses = sorted(grown, reverse=True)[:beams]
    return hypotheses[0][1][len(prompt) :]


def test_beams(model, tokenizer, prompts):
    config = LZPenaltyConfig(strength=0.2, window_size=60, buffer_size=8)
    processor = LZPenaltyLogitsProcessor(config, tokenizer=tokenizer)
    out = generate(model, [prompts[0]], processor, num_beams=3, max_new_tokens=12, min_new_tokens=12)
    want = plain_beam_search(model, prompts[0], exempt(config, tokenizer), beams=3, new=12)
    assert out[0, len(prompts[0]) :].tolist() == want


def test_sampling_sees_the_penalised_distribution(model, tokenizer, prompts):
    """With top-k 1 sampling is greedy: the processor must come before the warpers."""
    processor = LZPenaltyLogitsProcessor(PRESETS["guarded"], tokenizer=tokenizer)
    want, margins = plain_loop(model, prompts[2], exempt(PRESETS["guarded"], tokenizer))
    out = generate(model, [prompts[2]], processor, do_sample=True, top_k=1, temperature=0.7)
    assert_same(cut(out[0], len(prompts[2])), want, margins)


def test_output_logits_stay_raw(model, tokenizer, prompts):
    processor = LZPenaltyLogitsProcessor(LZPenaltyConfig(strength=1.0, buffer_size=4), tokenizer=tokenizer)
    out = generate(
        model,
        [prompts[3]],
        processor,
        max_new_tokens=4,
        output_logits=True,
        output_scores=True,
        return_dict_in_generate=True,
    )
    with torch.no_grad():
        raw = model(torch.tensor([prompts[3]])).logits[0, -1]
    torch.testing.assert_close(out.logits[0][0], raw, atol=1e-4, rtol=1e-4)
    assert (out.scores[0][0] < out.logits[0][0] - 0.5).any()


# ---------------------------------------------------------------- enable()


@pytest.fixture
def enabled():
    lz.enable()
    lz.enable()
    yield
    lz.disable()


@pytest.mark.usefixtures("enabled")
class TestEnabled:
    def test_generate_takes_the_setting(self, model, prompts):
        out = generate(model, [prompts[1]], None, lz_preset="guarded", lz_penalty=0.3)
        processor = LZPenaltyLogitsProcessor(PRESETS["guarded"], model_config=model.generation_config)
        assert out.tolist() == generate(model, [prompts[1]], processor).tolist()
        assert out.tolist() != generate(model, [prompts[1]], None).tolist()
        assert (
            generate(model, [prompts[1]], None, lz_penalty=0).tolist() == generate(model, [prompts[1]], None).tolist()
        )

    def test_generation_config_files_keep_it(self, model, prompts, tmp_path):
        GenerationConfig(lz_penalty=0.15, lz_window_size=64).save_pretrained(tmp_path)
        assert json.loads((tmp_path / "generation_config.json").read_text())["lz_penalty"] == 0.15
        loaded = GenerationConfig.from_pretrained(tmp_path)
        assert (loaded.lz_penalty, loaded.lz_window_size) == (0.15, 64)

    def test_the_prompt_can_be_left_out(self, model, prompts):
        out = generate(model, [prompts[3]], None, lz_preset="sglang", lz_penalty=0.4)
        processor = LZPenaltyLogitsProcessor(
            LZPenaltyConfig.sglang(strength=0.4), model_config=model.generation_config, prompt_length=len(prompts[3])
        )
        assert out.tolist() == generate(model, [prompts[3]], processor).tolist()

    def test_bad_settings_raise(self, model, prompts):
        with pytest.raises(LZPenaltyError, match="lz_penalty = nan"):
            generate(model, [prompts[0]], None, lz_penalty=math.nan)
        with pytest.raises(LZPenaltyError, match="lz_preset"):
            generate(model, [prompts[0]], None, lz_preset="gaurded")

    def test_twice_is_refused(self, model, tokenizer, prompts):
        processor = LZPenaltyLogitsProcessor(PRESETS["paper"], tokenizer=tokenizer)
        with pytest.raises(LZPenaltyError, match="use one of them"):
            generate(model, [prompts[0]], processor, lz_penalty=0.15)


def test_unknown_to_generate_unless_enabled(model, prompts):
    with pytest.raises(ValueError, match="lz_penalty"):
        generate(model, [prompts[0]], None, lz_penalty=0.15)


# ---------------------------------------------------------------- special tokens


def test_special_tokens_are_exempt_and_shown(tokenizer, model):
    ids = special_token_ids(tokenizer)
    think, unthink = tokenizer.convert_tokens_to_ids(["<think>", "</think>"])
    assert {tokenizer.eos_token_id, think, unthink} <= set(ids)
    processor = LZPenaltyLogitsProcessor(LZPenaltyConfig(buffer_size=2), tokenizer=tokenizer)
    assert str(unthink) in repr(processor)
    assert processor.pad_token_id == tokenizer.pad_token_id
    context = torch.tensor([[unthink, 7, 7] * 4])
    scores = torch.zeros(1, len(tokenizer))
    assert processor(context, scores)[0, unthink] == 0
    on_request = LZPenaltyLogitsProcessor(
        LZPenaltyConfig(buffer_size=2), tokenizer=tokenizer, penalise_special_tokens=True
    )
    assert on_request(context, scores)[0, unthink] < 0
    assert special_token_ids(config=model.generation_config) == (0, 1)


def test_a_config_is_asked_for():
    with pytest.raises(LZPenaltyError, match="must be an LZPenaltyConfig"):
        LZPenaltyLogitsProcessor(0.15)
