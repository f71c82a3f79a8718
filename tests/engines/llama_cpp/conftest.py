"""The bundled model as GGUF in llama-cpp-python, and in torch for the reference loop; both in float32."""

import pytest

from tests.engines.llama_cpp.decoding import loaded
from tests.engines.llama_cpp.make_gguf import make_gguf


@pytest.fixture(scope="session")
def gguf_path(tmp_path_factory):
    return make_gguf(tmp_path_factory.mktemp("gguf") / "bundled.gguf")


@pytest.fixture(scope="session")
def llm(gguf_path):
    return loaded(gguf_path)
