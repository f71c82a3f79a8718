"""The bundled model in float32 twice: in mlx-lm, and in torch for the reference loop."""

import mlx.core as mx
import pytest
from mlx_lm import load

from lz_penalty import bundled_model


def loaded():
    model, tokenizer = load(str(bundled_model.path()))
    model.set_dtype(mx.float32)
    return model, tokenizer


@pytest.fixture(scope="session")
def engine():
    """Model and tokenizer as mlx-lm loads them."""
    return loaded()


@pytest.fixture(scope="session")
def draft():
    """A worse model with the same tokenizer: the bundled one without its last layers."""
    model, _ = loaded()
    model.model.layers = model.model.layers[:6]
    return model
