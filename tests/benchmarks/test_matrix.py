"""The matrix finds a difference between engines, and excuses it only at a near-tie."""

import doctest
import sys
from pathlib import Path

import pytest

from benchmarks import engine_tables, matrix

TRUTH = {"tokens": [[1, 2, 3], [4, 5, 0]], "margins": [[1.0, 0.5, 2.0], [1.0, 9e-4, 3.0]]}


def test_examples():
    for module in (matrix, engine_tables):
        found = doctest.testmod(module)
        assert found.attempted
        assert not found.failed


@pytest.mark.parametrize(
    ("got", "identical", "near_ties", "unexplained"),
    [
        ([[1, 2, 3], [4, 5, 0]], 2, [], []),
        ([[1, 2, 3], [4, 6, 7]], 1, [9e-4], []),
        ([[1, 9, 3], [4, 6, 7]], 0, [9e-4], [0.5]),
        ([[1, 2], [4, 5, 0]], 1, [], [2.0]),  # ended early
        ([[1, 2, 3], [4, 5, 0, 8]], 1, [], [3.0]),  # went on after the end
        ([[1, 2, 3], [4]], 1, [], [9e-4]),  # ended at a near-tie, but without an end token
    ],
)
def test_differences(got, identical, near_ties, unexplained):
    want = {"sequences": 2, "identical": identical, "near_ties": near_ties, "unexplained": unexplained}
    assert matrix.judged(got, TRUTH) == want


def test_a_missing_sequence_is_no_agreement():
    with pytest.raises(ValueError, match=r"zip\(\)"):
        matrix.judged([[1, 2, 3]], TRUTH)


def test_environments_that_are_not_there_are_left_out(tmp_path):
    found = matrix.pythons([f".venv-mlx={sys.executable}", f".venv-vllm={tmp_path / 'nowhere'}"])
    assert found["mlx-lm"] == Path(sys.executable)
    assert "vLLM" not in found
