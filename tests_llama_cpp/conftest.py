"""The bundled model as GGUF in llama-cpp-python, and in torch for the reference loop; both in float32."""

import os
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))  # cases.py, greedy.py
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from greedy import exempt, plain_loop
from llama_cpp import Llama
from make_gguf import make_gguf
from transformers import AutoModelForCausalLM, AutoTokenizer

from lz_penalty import bundled_model

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def gguf_path(tmp_path_factory):
    return make_gguf(tmp_path_factory.mktemp("gguf") / "bundled.gguf")


@pytest.fixture(scope="session")
def llm(gguf_path):
    return Llama(str(gguf_path), n_ctx=1024, n_threads=1, verbose=False, logits_all=True)


@pytest.fixture(scope="session")
def model():
    return AutoModelForCausalLM.from_pretrained(bundled_model.path(), dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def tokenizer():
    return AutoTokenizer.from_pretrained(bundled_model.path())


@pytest.fixture(scope="session")
def prompts(tokenizer):
    """Four prompts of different lengths."""
    return [tokenizer(text).input_ids[: 12 + 9 * i] for i, text in enumerate(bundled_model.prompts()[:4])]


@pytest.fixture(scope="session")
def truth(model, tokenizer):
    """Tokens and margins of the reference loop, each computed once."""
    known = {}

    def of(prompt, config):
        key = (tuple(prompt), config)
        if key not in known:
            known[key] = plain_loop(model, prompt, config and exempt(config, tokenizer))
        return known[key]

    return of
