"""The files of examples/ that run in this environment; each other one is run by the tests of its engine."""

from pathlib import Path

import pytest

from lz_penalty.detection import find_repetition
from lz_penalty.engines import transformers as lz
from tests.support import EXAMPLES, ROOT
from tests.support.doc_blocks import check_names
from tests.support.examples import example as load

ELSEWHERE = {
    "http_client.py": "tests/engines/transformers/test_serve.py",
    "llama_cpp_generate.py": "tests/engines/llama_cpp/test_example.py",
    "mlx_generate.py": "tests/engines/mlx/test_example.py",
    "sglang_offline.py": "tests/engines/sglang/test_example.py",
    "vllm_offline.py": "tests/engines/vllm/test_example.py",
}


@pytest.fixture
def example():
    yield lambda name: load(name).main
    lz.disable()


@pytest.fixture(scope="module")
def generated():
    """The texts of transformers_generate.py: without the penalty and with it."""
    texts = load("transformers_generate").main()
    lz.disable()
    return texts


def test_generate(generated):
    without, penalised = generated
    assert find_repetition(without, min_copies=5, min_length=60)
    assert not find_repetition(penalised, min_copies=5, min_length=60)


def test_batching(example):
    texts = example("transformers_batching")()
    assert len(texts) == 4
    assert not any(find_repetition(text, min_copies=5, min_length=60) for text in texts)


def test_a_loop_of_ones_own_and_a_policy_write_what_generate_writes(example, generated):
    _, penalised = generated
    own, policy = example("own_loop")(), example("policy_sections")()
    assert penalised.startswith(own[:200])  # in bfloat16, a loop without a cache parts from one with it sooner or later
    assert policy == penalised


def test_finding_loops(example):
    said = example("find_loops")()
    assert "endless" in said["a loop"]
    assert "goes on" in said["a table"]
    assert said["a stream"].startswith("stopped after")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_every_example_names_what_exists_and_is_run_by_some_test(path: Path):
    check_names(path.read_text(encoding="utf-8"))
    test = ROOT / ELSEWHERE.get(path.name, "tests/docs/test_examples.py")
    assert path.stem in test.read_text(encoding="utf-8")
