"""examples/llama_cpp_generate.py on the bundled model."""

from lz_penalty.detection import find_repetition
from tests.support.examples import example


def test_the_example(gguf_path):
    without, penalised = example("llama_cpp_generate").main(str(gguf_path))
    assert find_repetition(without, min_copies=5, min_length=60)
    assert not find_repetition(penalised, min_copies=5, min_length=60)
