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
    """What the plug-in exempts on the bundled model."""
    return tuple(
        sorted({tokenizer.eos_token_id, tokenizer.pad_token_id, *tokenizer.all_special_ids, *thinking(tokenizer)})
    )


def thinking(tokenizer):
    return tokenizer.convert_tokens_to_ids(["<think>", "</think>"])
