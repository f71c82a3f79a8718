"""examples/llama_cpp_generate.py on the bundled model."""

import sys
from pathlib import Path

from lz_penalty.detection import find_repetition

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

import llama_cpp_generate


def test_the_example(gguf_path):
    without, penalised = llama_cpp_generate.main(str(gguf_path))
    assert find_repetition(without, min_copies=5, min_length=60)
    assert not find_repetition(penalised, min_copies=5, min_length=60)
