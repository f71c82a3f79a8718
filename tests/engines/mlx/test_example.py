"""examples/mlx_generate.py on the bundled model."""

from lz_penalty.detection import find_repetition
from tests.support.examples import example


def test_the_example():
    without, penalised = example("mlx_generate").main()
    assert find_repetition(without, min_copies=5, min_length=60)
    assert not find_repetition(penalised, min_copies=5, min_length=60)
