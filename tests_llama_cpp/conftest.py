"""The bundled model as GGUF in llama-cpp-python, and in torch for the reference loop; both in float32."""

import os
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))  # cases.py, greedy.py
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from decoding import loaded
from make_gguf import make_gguf

pytest_plugins = ["bundled_fixtures"]  # of the reference loop

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def gguf_path(tmp_path_factory):
    return make_gguf(tmp_path_factory.mktemp("gguf") / "bundled.gguf")


@pytest.fixture(scope="session")
def llm(gguf_path):
    return loaded(gguf_path)
