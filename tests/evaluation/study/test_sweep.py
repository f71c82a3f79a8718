"""The sweep's file: the paper's values, and what is refused."""

import pytest

from lz_penalty.errors import LZPenaltyError
from lz_penalty.evaluation.study.requests import generate_config
from lz_penalty.evaluation.study.sweep import cells, read_sweep

GOOD = """
name = "good"
[grid]
penalties = ["none", "paper:0.15"]
temperatures = [0.0, 0.5]
[[models]]
name = "m"
kind = "vllm"
model = "org/m"
endpoints = ["http://localhost:8000/v1"]
[[tasks]]
name = "t"
source = "problems"
"""

SECOND = GOOD[GOOD.index("[[models]]") : GOOD.index("[[tasks]]")].replace('"m"', '"n"', 1)


def test_the_papers_sweep_is_the_papers():
    sweep = read_sweep("paper")
    grid = sweep.grid
    assert grid.temperatures == tuple(round(0.1 * i, 1) for i in range(11))
    assert (grid.max_tokens, grid.top_p, grid.top_k, grid.runs) == (24_000, 0.95, 40, 5)
    assert grid.greedy_runs is None
    values = {
        kind: [p.partition(":")[2] for p in grid.penalties if p.startswith(kind)] for kind in ("pap", "rep", "fre")
    }
    assert values["pap"] == ["0.1", "0.15", "0.2", "0.3"]
    assert values["rep"] == ["1.1", "1.2", "1.25", "1.3", "1.5"]
    assert values["fre"] == ["0.1", "0.2", "0.3", "0.4", "0.6", "0.8", "0.9", "1.0"]
    assert [model.model for model in sweep.models] == ["Qwen/QwQ-32B", "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B"]
    assert sweep.judge.model == "openai/gpt-4o"
    paper = generate_config("vllm", "paper:0.15", 0.0, max_tokens=1, top_p=1, top_k=0)
    alone = {"lz_end_thinking_copies": "none", "lz_stop_copies": "none", "lz_shadow": 0}
    assert paper.extra_body == {"vllm_xargs": {"lz_preset": "paper"} | alone}


def test_the_small_sweep_has_the_same_shape():
    paper, small = read_sweep("paper").grid, read_sweep("small").grid
    assert set(paper.penalties) <= set(small.penalties)
    assert {"guarded", "failsafe", "dry:0.8"} <= set(small.penalties)
    assert (small.top_p, small.top_k) == (paper.top_p, paper.top_k)


def test_cells_have_different_names():
    for name in ("paper", "small"):
        made = cells(read_sweep(name))
        assert len({(cell.model.name, cell.name) for cell in made}) == len(made)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[grid]", "[grid", "not TOML"),
        ('name = "good"', "", "name = None: must be a text"),
        ('name = "good"', 'name = "good"\nextra = 1', "extra: unknown; a sweep has name, grid"),
        ('"paper:0.15"', '"papper:0.15"', "Did you mean paper?"),
        ('"paper:0.15"', '"repetition:x"', "'x' must be a number"),
        ('"paper:0.15"', '"none"', "a value occurs twice"),
        ("[0.0, 0.5]", "[0.0, -0.5]", "temperatures = -0.5: must be a finite number"),
        ("[0.0, 0.5]", "[]", "a list of 1 to"),
        ("[0.0, 0.5]", "0.5", "a list of 1 to"),
        ('kind = "vllm"', 'kind = "vlm"', "must be one of 'transformers', 'vllm'"),
        ('kind = "vllm"', "", "kind is missing"),
        ('endpoints = ["http://localhost:8000/v1"]', "", "needs endpoints"),
        ('source = "problems"', 'sorce = "problems"', "sorce is unknown. Did you mean source?"),
        ('source = "problems"', 'source = "problems"\nsamples = 0', "samples = 0: must be an integer from 1"),
        ('[[tasks]]\nname = "t"\nsource = "problems"', "", "at least one [[tasks]]"),
        ("[[tasks]]", SECOND + "[[tasks]]", "the same kind and model twice"),
        ("[[models]]", "[models]", "at least one [[models]]"),
    ],
)
def test_what_is_malformed_is_named(tmp_path, old, new, message):
    assert old in GOOD
    path = tmp_path / "sweep.toml"
    path.write_text(GOOD)
    read_sweep(path)
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(LZPenaltyError) as error:
        read_sweep(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)


def test_there_is_no_such_sweep():
    with pytest.raises(LZPenaltyError, match="Give a TOML file, or one of paper, real, small"):
        read_sweep("smal")


def test_a_penalty_that_would_do_nothing_is_refused():
    with pytest.raises(LZPenaltyError, match="does not have it, so it would do nothing"):
        generate_config("sglang", "dry:0.8", 0.0, max_tokens=1, top_p=1, top_k=0)
    with pytest.raises(LZPenaltyError, match="has no LZ penalty"):
        generate_config("inspect", "guarded", 0.0, max_tokens=1, top_p=1, top_k=0)
    with pytest.raises(LZPenaltyError, match="cannot keep a model from ending"):
        generate_config("vllm", "none", 0.0, max_tokens=1, top_p=1, top_k=0, may_end=False)
