"""The transformers plug-in in the real engine, on the bundled model, against a plain loop with the reference."""

import copy
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AddedToken, CompileConfig, DynamicCache, GenerationConfig, RepetitionPenaltyLogitsProcessor

from lz_penalty import LZPenaltyConfig, LZPenaltyError, bundled_model, reference
from lz_penalty.engines import transformers as lz
from lz_penalty.engines.transformers import LZPenaltyLogitsProcessor, special_token_ids
from tests.support import quick_or_deep
from tests.support.cases import settings_of
from tests.support.greedy import NEW, PRESETS, assert_same, cut, exempt, generate, left_padded, plain_loop
from tests.support.requests_and_truth import is_partly_open
from tests.support.settings import UNGATED


@pytest.mark.parametrize("name", PRESETS)
def test_one_sequence(model, tokenizer, prompts, truth, name):
    processor = LZPenaltyLogitsProcessor(PRESETS[name], tokenizer=tokenizer)
    for prompt in prompts[: quick_or_deep(2, 4)]:
        want, margins = truth(prompt, PRESETS[name])
        assert_same(cut(generate(model, [prompt], processor)[0], len(prompt)), want, margins)


def test_the_gate_of_these_tests_is_partly_open_and_matters(prompts, truth):
    """The other tests compare with these texts, in every engine."""
    for config in (PRESETS["gated"], replace(PRESETS["gated"], include_prompt=False)):
        texts = {
            settings: [truth(prompt, settings)[0] for prompt in prompts]
            for settings in (config, None, replace(config, gate_low=None, gate_high=None))
        }
        written = zip(prompts, texts[config], strict=True)
        assert sum(is_partly_open(prompt, text[:i], config) for prompt, text in written for i in range(NEW)) > NEW
        assert len({str(one) for one in texts.values()}) == 3


@pytest.mark.parametrize("name", ["paper", "guarded", "gated"])
def test_left_padded_batch(model, tokenizer, prompts, truth, name):
    processor = LZPenaltyLogitsProcessor(PRESETS[name], tokenizer=tokenizer)
    ids, mask = left_padded(prompts)
    out = generate(model, ids, processor, mask)
    for row, prompt in zip(out, prompts, strict=True):
        want, margins = truth(prompt, PRESETS[name])
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


def test_rows_of_pads_alone_and_empty_rows_are_left_as_they_are():
    scores = torch.randn(2, 16, generator=torch.Generator().manual_seed(0))
    pads = torch.zeros(2, 60, dtype=torch.int64)
    for processor in (
        LZPenaltyLogitsProcessor(UNGATED, pad_token_id=0),
        LZPenaltyLogitsProcessor(UNGATED, attention_mask=torch.zeros(2, 60)),
        LZPenaltyLogitsProcessor(LZPenaltyConfig.sglang(), prompt_length=60),
        LZPenaltyLogitsProcessor(LZPenaltyConfig.guarded()),  # its first call has the prompt
    ):
        assert torch.equal(processor(pads, scores), scores)
    assert torch.equal(LZPenaltyLogitsProcessor(LZPenaltyConfig(), 0)(pads[:, :0], scores), scores)
    assert not torch.equal(LZPenaltyLogitsProcessor(UNGATED)(pads, scores), scores)


def test_the_mask_tells_padding_whatever_token_it_is():
    rows = [[5, 6, 0, 5, 6], [5, 5, 5, 6, 5]]
    want = [reference.penalise([0.0] * 16, row, strength=1.0, buffer_size=2) for row in (rows[0][2:], rows[1])]
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    processor = LZPenaltyLogitsProcessor(LZPenaltyConfig(buffer_size=2, strength=1.0), attention_mask=mask)
    beams = processor(torch.tensor([rows[0], rows[0], rows[1], rows[1]]), torch.zeros(4, 16))
    for got, i in zip(beams, (0, 0, 1, 1), strict=True):
        assert got.tolist() == pytest.approx(want[i])
    with pytest.raises(LZPenaltyError, match="attention_mask has 2 rows and the scores 3"):
        processor(torch.zeros(3, 5, dtype=torch.int64), torch.zeros(3, 16))


@pytest.mark.parametrize(
    "config",
    [LZPenaltyConfig.sglang(strength=0.4), replace(PRESETS["gated"], include_prompt=False)],
    ids=["sglang", "gated"],
)
def test_prompt_left_out(model, tokenizer, prompts, truth, config):
    prompt = prompts[3]
    want, margins = truth(prompt, config)
    learning = LZPenaltyLogitsProcessor(config, tokenizer=tokenizer)
    generate(model, [prompts[0]], learning)
    processor = LZPenaltyLogitsProcessor(config, tokenizer=tokenizer, prompt_length=len(prompt))
    for one in (learning, processor):
        assert_same(cut(generate(model, [prompt], one)[0], len(prompt)), want, margins)
    for how in ({"prompt_lookup_num_tokens": 4}, {"assistant_model": model}):
        assert_same(cut(generate(model, [prompt], learning, **how)[0], len(prompt)), want, margins)
    with pytest.raises(LZPenaltyError, match="the input has 12 tokens only"):
        generate(model, [prompts[0]], processor)


@torch.no_grad()
def test_the_preset_guarded_needs_no_prompt_length(model, tokenizer, prompts):
    """Every way of decoding calls the processor with the prompt first. One processor serves all generations."""
    config, prompt, new = LZPenaltyConfig.guarded(), prompts[1], 100
    want, margins = plain_loop(model, prompt, exempt(config, tokenizer), new=new)
    counting = plain_loop(model, prompt, exempt(replace(config, include_prompt=True), tokenizer), new=new)[0]
    assert want not in (plain_loop(model, prompt, None, new=new)[0], counting)
    processor = LZPenaltyLogitsProcessor(config, tokenizer=tokenizer)
    ways = [{}, {"prompt_lookup_num_tokens": 4}, {"assistant_model": model}, {"cache_implementation": "static"}]
    for how in ways:
        out = generate(model, [prompt], processor, max_new_tokens=new, **how)
        assert_same(cut(out[0], len(prompt)), want, margins)
    ids, mask = left_padded([prompt, prompts[3]])
    out = generate(model, ids, processor, mask, max_new_tokens=new)
    assert_same(cut(out[0], len(ids[0])), want, margins)
    tokens, cache = torch.tensor([prompt]), DynamicCache()  # a loop of one's own
    while tokens.shape[1] < len(prompt) + len(want):
        logits = model(tokens[:, cache.get_seq_length() :], past_key_values=cache).logits[:, -1]
        tokens = torch.cat([tokens, processor(tokens, logits).argmax(-1, keepdim=True)], dim=1)
    assert_same(tokens[0, len(prompt) :].tolist(), want, margins)
    told = LZPenaltyLogitsProcessor(config, tokenizer=tokenizer, prompt_length=len(prompt))
    beams = [generate(model, [prompt], one, num_beams=3, max_new_tokens=70) for one in (processor, told)]
    assert torch.equal(*beams)


@pytest.mark.parametrize("name", ["guarded", "gated"])
def test_assisted_and_prompt_lookup_decoding(model, tokenizer, prompts, truth, name):
    processor = LZPenaltyLogitsProcessor(PRESETS[name], tokenizer=tokenizer)
    for prompt in prompts[:2]:
        want, margins = truth(prompt, PRESETS[name])
        for how in ({"prompt_lookup_num_tokens": 4}, {"assistant_model": model}):
            out = generate(model, [prompt], processor, **how)
            assert_same(cut(out[0], len(prompt)), want, margins)


@pytest.mark.parametrize("compiled", [False, True])
def test_static_cache(model, tokenizer, prompts, truth, compiled):
    """With `compiled`, each step of the model runs as graphs that torch.compile made; the processor stays outside."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    how = {"cache_implementation": "static", "disable_compile": not compiled}
    if compiled:
        how["compile_config"] = CompileConfig(backend=backend, mode=None)
        how["compile_config"]._compile_all_devices = True  # transformers compiles on a GPU only, otherwise
    processor = LZPenaltyLogitsProcessor(PRESETS["guarded"], tokenizer=tokenizer)
    want, margins = truth(prompts[1], PRESETS["guarded"])
    try:
        out = generate(model, [prompts[1]], processor, **how)
    finally:
        torch.compiler.reset()
    assert_same(cut(out[0], len(prompts[1])), want, margins)
    assert bool(graphs) == compiled


@pytest.mark.parametrize(
    ("ids", "scores"),
    [
        (torch.tensor([1, 2]), torch.zeros(1, 9)),
        (np.array([[1, 2]]), torch.zeros(1, 9)),
        (torch.tensor([[1, 2]]), np.zeros((1, 9))),
        ([[1, 2]], torch.zeros(1, 9)),
    ],
    ids=range(4),
)
def test_other_arguments_are_refused(ids, scores):
    with pytest.raises(LZPenaltyError, match=r"must be torch tensors \[rows, length\] and \[rows, vocab\]"):
        LZPenaltyLogitsProcessor(LZPenaltyConfig.guarded())(ids, scores)


def test_inside_a_compiled_function(tokenizer):
    """The processor is a graph break: each call computes the penalty, with an equal result."""
    processor = LZPenaltyLogitsProcessor(replace(UNGATED, buffer_size=4, strength=1.0), tokenizer=tokenizer)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    def step(ids, scores):
        return processor(ids, scores * 2) + 1

    compiled = torch.compile(step, backend=backend)
    generator = torch.Generator().manual_seed(0)
    for length in (6, 40, 41, 42, 80):
        ids = torch.randint(2, 5, (3, length), generator=generator)
        scores = torch.randn(3, 64, generator=generator)
        got = compiled(ids, scores)
        torch.testing.assert_close(got, step(ids, scores), rtol=0, atol=0)
        assert (got != scores * 2 + 1).any() or length < 10
    assert 2 <= len(graphs) <= 6  # before and after, for fixed and for varying lengths: not one for every history
    torch.compiler.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(step, backend=backend, fullgraph=True)(ids, scores)
    torch.compiler.reset()


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


def test_sampling_sees_the_penalised_distribution(model, tokenizer, prompts, truth):
    """With top-k 1 sampling is greedy: the processor must come before the warpers."""
    processor = LZPenaltyLogitsProcessor(PRESETS["guarded"], tokenizer=tokenizer)
    want, margins = truth(prompts[2], PRESETS["guarded"])
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


def test_transformers_own_penalties_come_first(model, tokenizer, prompts):
    processor = LZPenaltyLogitsProcessor(LZPenaltyConfig(strength=1.0, buffer_size=4), tokenizer=tokenizer)
    shown = {"output_logits": True, "output_scores": True, "return_dict_in_generate": True, "max_new_tokens": 1}
    out = generate(model, [prompts[3]], processor, repetition_penalty=1.5, **shown)
    ids = torch.tensor([prompts[3]])
    want = processor(ids, RepetitionPenaltyLogitsProcessor(1.5)(ids, out.logits[0]))
    torch.testing.assert_close(out.scores[0], want)


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
        out = generate(model, [prompts[1]], None, **PRESETS["guarded"].to_request())
        processor = LZPenaltyLogitsProcessor(PRESETS["guarded"], model_config=model.generation_config)
        assert out.tolist() == generate(model, [prompts[1]], processor).tolist()
        assert out.tolist() != generate(model, [prompts[1]], None).tolist()
        assert (
            generate(model, [prompts[1]], None, lz_penalty=0).tolist() == generate(model, [prompts[1]], None).tolist()
        )

    def test_a_tokenizer_exempts_its_special_tokens(self, model, tokenizer):
        """A thinking marker that is repeated is not penalised; without the tokenizer it is not known to be one."""
        marker = tokenizer.convert_tokens_to_ids("</think>")
        shown = {"output_logits": True, "output_scores": True, "return_dict_in_generate": True, "max_new_tokens": 1}
        for given, lowered in (({"tokenizer": tokenizer}, False), ({}, True)):
            out = generate(model, [[5, marker] * 8 + [5]], None, lz_penalty=1.0, lz_buffer_size=2, **shown, **given)
            assert bool(out.scores[0][0, marker] < out.logits[0][0, marker]) == lowered

    def test_generation_config_files_keep_it(self, model, prompts, tmp_path):
        GenerationConfig(lz_penalty=0.15, lz_window_size=64).save_pretrained(tmp_path)
        assert json.loads((tmp_path / "generation_config.json").read_text())["lz_penalty"] == 0.15
        loaded = GenerationConfig.from_pretrained(tmp_path)
        assert (loaded.lz_penalty, loaded.lz_window_size) == (0.15, 64)

    def test_the_prompt_can_be_left_out(self, model, prompts):
        out = generate(model, [prompts[3]], None, lz_preset="sglang", lz_penalty=0.4)
        for length in (len(prompts[3]), None):
            processor = LZPenaltyLogitsProcessor(
                LZPenaltyConfig.sglang(strength=0.4), model_config=model.generation_config, prompt_length=length
            )
            assert out.tolist() == generate(model, [prompts[3]], processor).tolist()

    def test_padding_is_known_from_the_mask(self, model, prompts):
        """The padding is the end token, or the token that would come next without the padding."""
        config = LZPenaltyConfig(strength=0.5, buffer_size=2, exempt_token_ids=(0, 1))
        want = [plain_loop(model, prompt, config) for prompt in prompts]
        for pad in (0, want[0][0][0]):
            ids, mask = left_padded(prompts, pad)
            out = generate(model, ids, None, mask, lz_penalty=0.5, lz_buffer_size=2)
            for row, expected in zip(out, want, strict=True):
                assert_same(cut(row, len(ids[0])), *expected)

    @pytest.mark.parametrize("how", [{"num_beams": 2}, {"num_return_sequences": 2, "do_sample": True, "top_k": 1}])
    def test_padded_rows_that_multiply(self, model, prompts, how):
        settings = {"lz_penalty": 0.5, "lz_buffer_size": 2, "max_new_tokens": 20} | how
        alone = [generate(model, [prompt], None, **settings)[:, len(prompt) :].tolist() for prompt in prompts[:2]]
        ids, mask = left_padded(prompts[:2], pad=alone[0][0][0])
        assert generate(model, ids, None, mask, **settings)[:, len(ids[0]) :].tolist() == alone[0] + alone[1]

    def test_embeddings_instead_of_a_prompt(self, model, prompts):
        """The prompt's tokens are unknown: only the new ones count."""
        embeddings = model.get_input_embeddings()(torch.tensor([prompts[0]])).detach()
        given = {"lz_penalty": 0.5, "lz_buffer_size": 2, "max_new_tokens": NEW, "do_sample": False}
        out = model.generate(inputs_embeds=embeddings, attention_mask=torch.ones(1, len(prompts[0])), **given)
        config = LZPenaltyConfig(strength=0.5, buffer_size=2, include_prompt=False, exempt_token_ids=(0, 1))
        assert_same(cut(out[0], 0), *plain_loop(model, prompts[0], config))

    def test_a_misspelt_setting_in_a_generation_config_raises(self, model, prompts):
        config = GenerationConfig(lz_penalty=0.15, lz_windowsize=64, max_new_tokens=2)
        with pytest.raises(LZPenaltyError, match="Did you mean lz_window_size"):
            generate(model, [prompts[0]], None, generation_config=config)

    def test_bad_settings_raise(self, model, prompts):
        with pytest.raises(LZPenaltyError, match="lz_penalty = nan"):
            generate(model, [prompts[0]], None, lz_penalty=math.nan)
        with pytest.raises(LZPenaltyError, match="lz_preset"):
            generate(model, [prompts[0]], None, lz_preset="gaurded")

    @pytest.mark.parametrize("in_the_model", [False, True])
    def test_assisted_and_prompt_lookup_decoding(self, model, prompts, monkeypatch, in_the_model):
        settings = PRESETS["guarded"].to_request()
        want, margins = plain_loop(model, prompts[1], replace(PRESETS["guarded"], exempt_token_ids=(0, 1)))
        if in_the_model:
            for name, value in settings.items():
                monkeypatch.setattr(model.generation_config, name, value)
        for how in ({"prompt_lookup_num_tokens": 4}, {"assistant_model": model}):
            out = generate(model, [prompts[1]], None, **({} if in_the_model else settings), **how)
            assert_same(cut(out[0], len(prompts[1])), want, margins)

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


@pytest.fixture
def tokens(tokenizer):
    """A tokenizer with added tokens of many kinds, and a chat template that holds some of them."""
    tokenizer = copy.deepcopy(tokenizer)
    added = ["<|im_end|>", "[INST]", "<seed:thought>", "<h1>", "\n\n", "user", "<tool_call>"]
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in added])
    tokenizer.chat_template = "{% for m in messages %}[INST]{{ m.content }} user\n\n<|im_end|>{% endfor %}"
    return tokenizer


def test_markers_of_the_chat_template_are_special_and_its_words_are_not(tokens):
    special = set(tokens.convert_ids_to_tokens(special_token_ids(tokens)))
    assert {"<|im_end|>", "[INST]", "<seed:thought>", "<think>", "</think>", "<|endoftext|>", "<|pad|>"} == special
    tokens.chat_template = {"default": "...", "tools": "<tool_call>"}
    assert "<tool_call>" in tokens.convert_ids_to_tokens(special_token_ids(tokens))

    class Processor:
        """A processor of a model with images, which contains a tokenizer."""

        tokenizer, chat_template = tokens, "<h1>"

    assert "<h1>" in tokens.convert_ids_to_tokens(special_token_ids(Processor))
    assert LZPenaltyLogitsProcessor(LZPenaltyConfig(), tokenizer=Processor).pad_token_id == tokens.pad_token_id


def test_end_tokens_of_configs_are_special(model):
    assert special_token_ids(config=GenerationConfig(eos_token_id=[9, 5], pad_token_id=-1, bos_token_id=3)) == (3, 5, 9)
    assert special_token_ids(config=model.config) == (0, 1)
    shown = repr(LZPenaltyLogitsProcessor(LZPenaltyConfig(), model_config=GenerationConfig(eos_token_id=[9, 5])))
    assert "exempt_token_ids=(5, 9)" in shown


def test_ending_stays_as_easy_after_many_turns(model, tokenizer):
    """A prompt full of end tokens: the end token keeps its score, and loses it on request."""
    turns = tokenizer("Question: What is 2 + 3?\nAnswer: 5<|endoftext|>" * 12, return_tensors="pt").input_ids
    scores = torch.zeros(1, len(tokenizer))
    config = LZPenaltyConfig(buffer_size=4)
    end = tokenizer.eos_token_id
    assert LZPenaltyLogitsProcessor(config, tokenizer=tokenizer)(turns, scores)[0, end] == 0
    for how in ({}, {"tokenizer": tokenizer, "penalise_special_tokens": True}):
        assert LZPenaltyLogitsProcessor(config, **how)(turns, scores)[0, end] < -0.5


def test_a_config_is_asked_for():
    with pytest.raises(LZPenaltyError, match="must be an LZPenaltyConfig"):
        LZPenaltyLogitsProcessor(0.15)
