"""Files of users that are nested too deep, or have long names, are refused in a few words instead of with a traceback."""

import json

import pytest

from lz_penalty import LZPenaltyError
from lz_penalty.cli.replay import _changes
from lz_penalty.evaluation import compare
from lz_penalty.evaluation.baselines import baseline
from lz_penalty.evaluation.penalties import penalty
from lz_penalty.evaluation.replay.results import _parsed
from lz_penalty.evaluation.study.sweep import read_sweep
from tests.support.malformed import nested

DEEP = "[" * 100_000


def test_results_of_a_comparison(tmp_path):
    path = tmp_path / "results.json"
    path.write_text(DEEP)
    with pytest.raises(LZPenaltyError, match="not a file of results"):
        compare.read_results(path)
    path.write_text(json.dumps({"results": [], "plan": {"x" * 100_000: nested(100)}}))
    with pytest.raises(LZPenaltyError, match="made with other settings") as error:
        compare.read_results(path, compare.Plan("a model"))
    assert len(str(error.value)) < 700


def test_a_line_of_a_replay():
    assert _parsed(DEEP.encode()) is None


def test_a_change_of_a_replay():
    assert _changes(["stop=[1]", "model=a"]) == {"stop": [1], "model": "a"}
    with pytest.raises(LZPenaltyError, match=r"--set = 'stop=.*nested less deep"):
        _changes([f"stop={DEEP}"])


@pytest.mark.parametrize("text", [f"a = {DEEP}", f'name = "a"\n[grid]\n{"x" * 100_000} = 1'], ids=range(2))
def test_a_sweep(tmp_path, text):
    path = tmp_path / "sweep.toml"
    path.write_text(text)
    with pytest.raises(LZPenaltyError, match="sweep ") as error:
        read_sweep(path)
    assert len(str(error.value)) < 1_000


@pytest.mark.parametrize("name", ["x" * 1_000_000, "guardedd", 10**5000], ids=range(3))
def test_the_name_of_a_penalty(name):
    with pytest.raises(LZPenaltyError, match=r"unknown penalty\. Known:") as error:
        baseline(name)
    assert len(str(error.value)) < 700
    if isinstance(name, str):
        with pytest.raises(LZPenaltyError, match=r"unknown.*Known:"):
            penalty(name)


def test_a_question_of_a_study(tmp_path):
    tasks = pytest.importorskip("lz_penalty.evaluation.study.tasks")
    with pytest.raises(LZPenaltyError, match="line 3: must be") as error:
        tasks._sample(tmp_path, 3, DEEP)
    assert len(str(error.value)) < 700
