"""Copying tasks: the same everywhere, solvable, and scored by what is wrong."""

import json
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lz_penalty import LZPenaltyError, bundled_model
from lz_penalty.evaluation import copying
from lz_penalty.evaluation.copying import KINDS, CopyTask, copy_tasks


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_can_be_solved_from_its_prompt(kind):
    tasks = [task for task in copy_tasks(6) if task.kind == kind]
    assert len({task.prompt for task in tasks}) > 1
    for task in tasks:
        assert task.score(task.expected) == 1.0
        assert task.score("") == 0.0
        assert task.score("something else altogether") < 0.5
        if kind not in ("edit", "letters"):
            assert task.prompt.endswith("\n\n" + task.expected)


def test_an_edit_changes_what_it_says_and_no_more():
    for task in copy_tasks(6):
        if task.kind == "edit":
            code = task.prompt.partition("\n\n")[2]
            assert code != task.expected
            compile(task.expected, "edited", "exec")
            different = [
                pair for pair in zip(code.splitlines(), task.expected.splitlines(), strict=True) if len(set(pair)) > 1
            ]
            assert len(different) == 1
            assert 0.9 < task.score(code) < 1


def test_texts_are_what_they_say():
    tasks = copy_tasks(3)
    assert Counter(task.kind for task in tasks) == dict.fromkeys(KINDS, 3)
    quoted = [task.expected for task in tasks if task.kind == "quote"]
    assert all(any(text in passage for passage in bundled_model.passages()) for text in quoted)
    assert all(len(json.loads(task.expected)) == 6 for task in tasks if task.kind == "json")
    letters = [task.expected.split() for task in tasks if task.kind == "letters"]
    assert all(len(set(one)) == 1 and len(one) in (50, 100, 150) for one in letters)


def test_seeds_differ_and_counts_are_checked():
    assert {task.prompt for task in copy_tasks(1, seed=1)} != {task.prompt for task in copy_tasks(1, seed=2)}
    with pytest.raises(LZPenaltyError, match="count = 0"):
        copy_tasks(0)


def test_scores_ignore_wrapping_only():
    task = CopyTask("list", "Repeat: 1. a\n2. b", "1. a\n2. b")
    assert task.score("<think>so</think>\n\n```text\n1. a\n2. b\n```\n") == 1.0
    assert task.score("1. a\n2. b\n3. c") == pytest.approx(1 - 5 / 14)
    assert task.score("1. a") == pytest.approx(4 / 9)


def test_a_loop_instead_of_an_end_scores_little():
    task = next(task for task in copy_tasks(1) if task.kind == "letters")
    assert task.score(task.expected + " " + task.expected[0]) > 0.95
    assert task.score(" ".join([task.expected[0]] * 100_000)) < 0.01


def slow_distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]


@given(st.text("abc", max_size=12), st.text("abc", max_size=12))
def test_the_distance_is_levenshteins(a, b):
    assert copying._edit_distance(a, b) == slow_distance(a, b)


def test_a_long_surplus_is_cut_without_changing_the_distance():
    rng = random.Random(0)
    expected = "".join(rng.choices("ab", k=30))
    given_text = expected[:20] + "z" * (copying.MAX_SURPLUS + 500)
    assert copying._edit_distance(expected, given_text) == slow_distance(expected, given_text)
