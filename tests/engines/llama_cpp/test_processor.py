"""llama-cpp-python's own functions with the processor: the same tokens as the Python reference, token for token."""

from dataclasses import replace

import numpy as np
import pytest
from llama_cpp import LogitsProcessorList
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from lz_penalty import LZPenaltyConfig, LZPenaltyError
from lz_penalty.engines.llama_cpp._processor import LZPenaltyProcessors, special_ids
from tests.engines.llama_cpp.decoding import by_generate
from tests.support.greedy import NEW, PRESETS, assert_same
from tests.support.settings import UNGATED


@pytest.fixture(params=PRESETS, ids=str)
def config(request):
    return PRESETS[request.param]


def test_the_models_agree_and_the_penalty_matters(llm, prompts, truth):
    for prompt in prompts:
        assert_same(by_generate(llm, prompt), *truth(prompt, None))
    assert any(truth(prompt, None)[0] != truth(prompt, PRESETS["paper"])[0] for prompt in prompts)


@pytest.mark.parametrize("native", [True, False])
def test_generate(llm, prompts, truth, config, native):
    for prompt in prompts:
        assert_same(by_generate(llm, prompt, LZPenaltyProcessors(llm, config, native=native)), *truth(prompt, config))


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("config", [LZPenaltyConfig.sglang(), replace(PRESETS["gated"], include_prompt=False)])
def test_without_the_prompt(llm, prompts, truth, config, native):
    learning = LZPenaltyProcessors(llm, config, native=native)
    for prompt in prompts:
        for processors in (learning, LZPenaltyProcessors(llm, config, prompt_length=len(prompt), native=native)):
            assert_same(by_generate(llm, prompt, processors), *truth(prompt, config))


def test_special_tokens(llm, tokenizer):
    from lz_penalty.engines._special_tokens import special_token_ids

    assert special_ids(llm) == special_token_ids(tokenizer)
    assert LZPenaltyProcessors(llm, LZPenaltyConfig(), penalise_special_tokens=True).config.exempt_token_ids == ()


def test_tokenizers_agree(llm, tokenizer):
    text = "In 1984, the old man's 23 sheep ran.\n\n  It's said"
    assert llm.tokenize(text.encode(), add_bos=False) == tokenizer(text).input_ids


# ---------------------------------------------------------------- logit_bias


def completion(llm, prompt, **given):
    return llm.create_completion(prompt, max_tokens=NEW, temperature=0.0, repeat_penalty=1.0, **given)["choices"][0][
        "text"
    ]


def test_logit_bias_and_the_penalty_both_count(llm, prompts, truth):
    config = PRESETS["guarded"]
    prompt = prompts[0]
    without = completion(llm, prompt, logit_bias={7: 0.0})
    got = completion(llm, prompt, logits_processor=LZPenaltyProcessors(llm, config), logit_bias={7: 0.0})
    want = truth(prompt, config)[0]
    assert got == llm.detokenize([token for token in want if token != 0]).decode()
    assert got != without
    banned = max(set(want), key=want.count)
    biased = completion(llm, prompt, logits_processor=LZPenaltyProcessors(llm, config), logit_bias={banned: -100.0})
    assert biased != got


def test_a_list_is_used_again(llm, prompts):
    """A list of processors can be used again, although llama-cpp-python appends the bias to it."""
    processors, prompt = LZPenaltyProcessors(llm, PRESETS["guarded"]), prompts[0]
    before, members = completion(llm, prompt, logits_processor=processors), list(processors)
    text = llm.tokenize(before.encode(), add_bos=False)
    banned = max(set(text), key=text.count)
    for _ in range(2):
        assert completion(llm, prompt, logits_processor=processors, logit_bias={banned: -100.0}) != before
    assert processors == members
    assert completion(llm, prompt, logits_processor=processors) == before


def test_the_bug_is_there(llm, prompts):
    """llama-cpp-python drops an ordinary list together with the bias. If this test fails, the guard is no longer needed."""
    calls = []
    spy = LogitsProcessorList([lambda ids, scores: calls.append(1) or scores])
    completion(llm, prompts[0], logits_processor=spy, logit_bias={7: 0.0})
    assert not calls


@pytest.mark.parametrize("wrap", [lambda ours: LogitsProcessorList([ours]), lambda ours: LogitsProcessorList(ours[:])])
def test_an_ordinary_list_with_logit_bias_is_refused(llm, prompts, wrap):
    processors = wrap(LZPenaltyProcessors(llm, LZPenaltyConfig()))
    completion(llm, prompts[0], logits_processor=processors)
    with pytest.raises(LZPenaltyError, match="logit_bias makes llama-cpp-python drop"):
        completion(llm, prompts[0], logits_processor=processors, logit_bias={7: 0.0})


# ---------------------------------------------------------------- in place, and bad input


def test_scores_are_edited_in_place(llm):
    scores = np.zeros((llm.n_vocab(), 3), dtype=np.float32)[:, 1]
    ids = np.array([5, 6, 7] * 20, dtype=np.int32)
    for native in (True, False):
        (penalise,) = LZPenaltyProcessors(llm, UNGATED, native=native)
        assert penalise(ids, scores) is scores
        assert scores[5] < 0
        scores[:] = 0


def test_bad_arguments_are_refused(llm):
    with pytest.raises(LZPenaltyError, match="must be an LZPenaltyConfig"):
        LZPenaltyProcessors(llm, "guarded")
    with pytest.raises(LZPenaltyError, match="prompt_length = -1"):
        LZPenaltyProcessors(llm, LZPenaltyConfig(), prompt_length=-1)


def test_a_draft_model_is_refused(llm, monkeypatch):
    monkeypatch.setattr(llm, "draft_model", LlamaPromptLookupDecoding())
    with pytest.raises(LZPenaltyError, match="has a draft_model"):
        LZPenaltyProcessors(llm, LZPenaltyConfig())
