"""The bundled model and its problems."""

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from lz_penalty import bundled_model
from lz_penalty.bundled_model import problems
from lz_penalty.detection import distinct, is_loop
from lz_penalty.evaluation.bits import human_text_cost
from lz_penalty.evaluation.generation import continue_greedily
from lz_penalty.evaluation.loading import BUNDLED, load
from lz_penalty.evaluation.measures import is_near_loop
from lz_penalty.evaluation.penalties import penalty
from tests.support import quick_or_deep


@pytest.fixture(scope="module")
def loaded():
    return load(BUNDLED)


def test_it_is_an_ordinary_small_folder():
    path = bundled_model.path()
    files = {file.name for file in path.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= files
    assert (
        sum(file.stat().st_size for file in Path(bundled_model.__file__).parent.rglob("*") if file.is_file())
        <= 16_000_000
    )
    model = AutoModelForCausalLM.from_pretrained(path)
    assert model.config.model_type == "llama"
    tokenizer = AutoTokenizer.from_pretrained(path)
    assert tokenizer.decode(tokenizer("It was 12 o'clock.").input_ids) == "It was 12 o'clock."


def test_missing_weights_say_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr(bundled_model, "_HERE", tmp_path)
    with pytest.raises(FileNotFoundError, match="training/README"):
        bundled_model.path()


def test_it_reasons(loaded):
    """At least 80 % of held-out problems, greedily and without a penalty."""
    asked = list(problems.generate(seed=3, n=quick_or_deep(12, 60), split="heldout"))
    prompts = [loaded.tokenizer(problems.prompt(problem)).input_ids for problem in asked]
    answers = continue_greedily(loaded, prompts, penalty("none"), 300, may_end=True)
    texts = [loaded.tokenizer.decode(tokens) for tokens in answers.tokens]
    right = sum(problems.extract_answer(text) == one.answer for text, one in zip(texts, asked, strict=True))
    assert right >= 0.8 * len(asked)


def test_it_loops_and_guarded_ends_it(loaded):
    prompts = [loaded.tokenizer(text).input_ids for text in bundled_model.prompts()[:6]]
    new = quick_or_deep(130, 200)
    plain = continue_greedily(loaded, prompts, penalty("none"), new, may_end=False)
    guarded = continue_greedily(loaded, prompts, penalty("guarded"), new, may_end=False)
    share = [[distinct(tokens, 4) for tokens in run.tokens] for run in (plain, guarded)]
    assert (any(map(is_loop, plain.tokens)), any(map(is_loop, guarded.tokens))) == (True, False)
    assert (any(map(is_near_loop, share[0])), any(map(is_near_loop, share[1]))) == (True, False)
    assert sum(share[0]) / 6 < 0.5 < 0.55 < sum(share[1]) / 6


def test_human_text_costs_nothing_under_failsafe_and_guarded(loaded):
    texts = bundled_model.passages()[:1]
    cost = {
        name: human_text_cost(loaded, texts, penalty(name)).mean for name in ("none", "failsafe", "guarded", "paper")
    }
    assert cost["none"] == 0
    assert abs(cost["failsafe"]) < 1e-6
    assert abs(cost["guarded"]) < 1e-6  # the gate stays closed
    assert cost["paper"] > 0.01


def test_held_out_problems_are_not_in_training():
    train = {problem.question for problem in problems.generate(seed=0, n=3000, split="train")}
    heldout = {problem.question for problem in problems.generate(seed=0, n=3000, split="heldout")}
    assert len(heldout) > 2000
    assert not train & heldout


def test_solutions_are_right():
    """Every equation in a solution holds, and the solution ends with its answer."""
    import re

    equation = re.compile(r"(?<![\d\w])(-?\d+) ([-+*/]) (-?\d+) = (-?\d+)(?!\d)")
    checked = 0
    for problem in problems.generate(seed=7, n=3000, split="train"):
        assert problems.extract_answer(problem.solution) == problem.answer
        for left, sign, right, result in equation.findall(problem.solution):
            a, b, c = int(left), int(right), int(result)
            assert {"+": a + b, "-": a - b, "*": a * b}.get(sign, a // b if b else None) == c, problem.solution
            assert sign != "/" or b * c == a
            checked += 1
    assert checked > 3000
