"""Real vLLM engines on the bundled model, each in its own process."""

import os
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))  # cases.py
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

from lz_penalty import bundled_model  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model():
    return AutoModelForCausalLM.from_pretrained(bundled_model.path(), dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def tokenizer():
    return AutoTokenizer.from_pretrained(bundled_model.path())


@pytest.fixture(scope="session")
def special(tokenizer):
    """What the plug-in exempts on the bundled model."""
    return tuple(
        sorted({tokenizer.eos_token_id, tokenizer.pad_token_id, *tokenizer.all_special_ids, *thinking(tokenizer)})
    )


def thinking(tokenizer):
    return tokenizer.convert_tokens_to_ids(["<think>", "</think>"])
