"""Quantised models: the same tokens as a loop in Python over the engine's own logits, with the reference."""

import pytest

from lz_penalty.engines.llama_cpp._processor import LZPenaltyProcessors, exempting_special
from tests.engines.llama_cpp.decoding import by_chain, by_generate, by_reference, chained, loaded, with_history
from tests.engines.llama_cpp.make_gguf import quantised
from tests.support.greedy import PRESETS, assert_same


@pytest.fixture(scope="module", params=["Q8_0", "Q4_K_M", "Q2_K"])
def small(request, gguf_path):
    path = quantised(gguf_path, request.param)
    assert path.stat().st_size < gguf_path.stat().st_size / 3
    return loaded(path)


@pytest.mark.parametrize("preset", [None, *PRESETS])
def test_the_same_tokens(small, prompts, preset):
    config = preset and PRESETS[preset]
    exempt = config and exempting_special(config, small)
    for prompt in prompts:
        want = by_reference(small, prompt, exempt)
        assert_same(by_generate(small, prompt, config and LZPenaltyProcessors(small, config)), *want)
        penalty = [with_history(small, config, prompt)] if config else []
        assert_same(by_chain(small, prompt, chained(*penalty)), *want)


def test_it_is_another_model(small, prompts, truth):
    """Its tokens differ from those of the model that is not quantised."""
    assert any(by_generate(small, prompt) != truth(prompt, None)[0] for prompt in prompts)
