"""The bundled model in transformers, as fixtures: for these tests, and for those of engines in other environments."""

import pytest

from lz_penalty import bundled_model


@pytest.fixture(scope="session")
def model():
    """The bundled model in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(bundled_model.path(), dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def tokenizer():
    """Its tokenizer."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(bundled_model.path())


@pytest.fixture(scope="session")
def special(tokenizer):
    """The ids that the plug-in exempts on the bundled model."""
    return tuple(
        sorted({tokenizer.eos_token_id, tokenizer.pad_token_id, *tokenizer.all_special_ids, *thinking(tokenizer)})
    )


@pytest.fixture(scope="session")
def prompts(tokenizer):
    """Four prompts of different lengths."""
    return [tokenizer(text).input_ids[: 12 + 9 * i] for i, text in enumerate(bundled_model.prompts()[:4])]


@pytest.fixture(scope="session")
def truth(model, tokenizer):
    """A function of prompt and config that returns the tokens and margins of the reference loop, with special tokens exempt."""
    from tests.support.greedy import exempt, plain_loop

    return lambda prompt, config: plain_loop(model, prompt, config and exempt(config, tokenizer))


def thinking(tokenizer):
    return tokenizer.convert_tokens_to_ids(["<think>", "</think>"])
