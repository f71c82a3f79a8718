"""The native sampler in llama.cpp's own chains: the same tokens as the Python reference."""

import ctypes
from dataclasses import replace

import llama_cpp
import numpy as np
import pytest
from llama_cpp._internals import LlamaSampler

from lz_penalty import LZPenaltyConfig, LZPenaltyError, reference
from lz_penalty.engines.llama_cpp._sampler import native_sampler
from tests.engines.llama_cpp.decoding import by_chain, chained, with_history
from tests.support import cases
from tests.support.greedy import PRESETS, assert_same
from tests.support.requests_and_truth import is_partly_open


@pytest.mark.parametrize("preset", PRESETS)
def test_chain(llm, prompts, truth, preset):
    config = PRESETS[preset]
    for prompt in prompts:
        assert_same(by_chain(llm, prompt, chained(with_history(llm, config, prompt))), *truth(prompt, config))


@pytest.mark.parametrize("config", [LZPenaltyConfig.sglang(), replace(PRESETS["gated"], include_prompt=False)])
def test_without_the_prompt(llm, prompts, truth, config):
    for prompt in prompts:
        assert_same(by_chain(llm, prompt, chained(native_sampler(llm, config))), *truth(prompt, config))


def test_a_clone_goes_on_and_a_reset_forgets(llm, prompts, truth):
    config, prompt = PRESETS["guarded"], prompts[0]
    chain = chained(with_history(llm, config, prompt))
    clone = LlamaSampler()
    llama_cpp.llama_sampler_free(clone.sampler)
    clone.sampler = llama_cpp.llama_sampler_clone(chain.sampler)
    chain.close()  # frees the first; the clone has its own memory
    assert_same(by_chain(llm, prompt, clone), *truth(prompt, config))
    llama_cpp.llama_sampler_reset(clone.sampler)
    for token in prompt:
        llama_cpp.llama_sampler_accept(clone.sampler, token)
    assert_same(by_chain(llm, prompt, clone), *truth(prompt, config))


# ---------------------------------------------------------------- candidates in any order


def applied(penalty, ids, logits):
    """Return the logits of these candidates after the sampler."""
    data = (llama_cpp.llama_token_data * len(ids))(*[(i, x, 0.0) for i, x in zip(ids, logits, strict=True)])
    array = llama_cpp.llama_token_data_array(data=data, size=len(ids), selected=-1, sorted=True)
    llama_cpp.llama_sampler_apply(penalty, ctypes.byref(array))
    return [item.logit for item in data]


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("kind", ["all", "shuffled", "some"])
def test_equals_the_reference(llm, seed, kind):
    rng = np.random.default_rng(seed)
    case = cases.case(seed, rows=1, dtypes=("float32",))
    config = case.configs[0] or LZPenaltyConfig()
    context = [token for token in case.context(0) if -(2**31) <= token < 2**31]
    vocab = llm.n_vocab()
    logits = rng.standard_normal(vocab).astype(np.float32)
    ids = np.arange(vocab) if kind == "all" else rng.permutation(vocab)[: vocab if kind == "shuffled" else 40]
    penalty = with_history(llm, config, context, penalise_special_tokens=True)
    got = applied(penalty, ids.tolist(), logits[ids].tolist())
    llama_cpp.llama_sampler_free(penalty)
    want = reference.penalise(logits.tolist(), context, strength=config.strength, **cases.settings_of(config))
    np.testing.assert_allclose(got, np.array(want)[ids], rtol=1e-5, atol=5e-5 * max(1.0, config.strength))


@pytest.mark.parametrize("loop_window", [50, 9])
@pytest.mark.parametrize("gate", [{}, {"gate_low": 0.2, "gate_high": 0.95, "gate_window": 40}], ids=["no gate", "gate"])
def test_a_long_history_is_kept_as_far_as_it_matters(llm, gate, loop_window):
    config = LZPenaltyConfig(window_size=30, buffer_size=4, escalation=1.0, loop_window=loop_window, **gate)
    tokens = np.random.default_rng(0).integers(0, 8, 1000).tolist()
    logits, partly_open = [0.0] * llm.n_vocab(), 0
    for length in range(900, 1000):  # some of them directly after tokens were dropped
        context = tokens[:length]
        penalty = with_history(llm, config, context, penalise_special_tokens=True)
        got = applied(penalty, range(llm.n_vocab()), logits)
        llama_cpp.llama_sampler_free(penalty)
        want = reference.penalise(logits, context, strength=config.strength, **cases.settings_of(config))
        np.testing.assert_allclose(got, want, atol=1e-5)
        partly_open += is_partly_open(context, [], config)
    assert (partly_open > 20) == bool(gate)


def test_bad_config_is_refused(llm):
    with pytest.raises(LZPenaltyError, match="must be an LZPenaltyConfig"):
        native_sampler(llm, "guarded")
