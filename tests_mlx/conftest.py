"""The bundled model in float32 twice: in mlx-lm, and in torch for the reference loop."""

import os
import sys
from pathlib import Path

import mlx.core as mx
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))  # cases.py, greedy.py
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from mlx_lm import load

from lz_penalty import bundled_model

pytest_plugins = ["bundled_fixtures"]  # of the reference loop

torch.set_num_threads(1)


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
