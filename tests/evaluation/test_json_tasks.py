"""JSON tasks: the same everywhere, solvable from the prompt, and scored by the schema and the facts."""

import copy
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lz_penalty import LZPenaltyError
from lz_penalty.evaluation.json_tasks import KINDS, JsonTask, json_tasks

TASKS = json_tasks(6)


def leaves(value):
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from leaves(item)
    else:
        yield value


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_can_be_solved_from_its_prompt(kind):
    tasks = [task for task in TASKS if task.kind == kind]
    assert len({task.prompt for task in tasks}) == len(tasks)
    assert len({len(task.expected[kind]) for task in tasks}) > 1
    for task in tasks:
        schema, _, text = task.prompt.partition("\nText:\n")
        assert json.loads(schema.partition("Schema:\n")[2]) == task.schema
        assert 3 <= len(task.expected[kind]) <= 10
        assert all(str(one) in text for one in leaves(task.expected) if not isinstance(one, bool))
        assert task.score(json.dumps(task.expected)).right
        assert not task.score(text).found


def test_both_truths_occur():
    for key in ("paid", "active"):
        assert {record[key] for task in TASKS for record in task.expected[task.kind] if key in record} == {True, False}


def test_seeds_differ_and_counts_are_checked():
    assert json_tasks(1, seed=1)[0].prompt != json_tasks(1, seed=2)[0].prompt
    with pytest.raises(LZPenaltyError, match="count = 0"):
        json_tasks(0)


@pytest.fixture
def task():
    return next(task for task in TASKS if task.kind == "orders")


@pytest.mark.parametrize(
    "form",
    [
        "{}",
        "```json\n{}\n```",
        "```\n{}```\nThese are all of them [1].",
        "Here is the JSON, with the keys in {{curly}} brackets: {}",
        '<think>{{"orders": []}}</think>\n{}',
    ],
)
def test_words_around_the_value_do_not_count(task, form):
    for indent in (None, 2):
        assert task.score(form.format(json.dumps(task.expected, indent=indent))).right


def edit(task, change):
    value = copy.deepcopy(task.expected)
    change(value)
    return task.score(json.dumps(value))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda value: value["orders"].pop(), "the value.orders: must have from "),
        (lambda value: value["orders"].append(value["orders"][0]), "the value.orders: must have from "),
        (lambda value: value["orders"][1].pop("paid"), "the value.orders[1]: the key 'paid' is missing"),
        (lambda value: value["orders"][1].update(note=""), "the value.orders[1]: the key 'note' is not in the schema"),
        (
            lambda value: value["orders"][0].update(quantity="5"),
            "the value.orders[0].quantity: must be of type integer",
        ),
        (
            lambda value: value["orders"][0].update(quantity=5.5),
            "the value.orders[0].quantity: must be of type integer",
        ),
        (
            lambda value: value["orders"][0].update(quantity=True),
            "the value.orders[0].quantity: must be of type integer",
        ),
        (lambda value: value["orders"][0].update(paid=1), "the value.orders[0].paid: must be of type boolean"),
        (lambda value: value["orders"][0].update(paid=None), "the value.orders[0].paid: must be of type boolean"),
        (lambda value: value["orders"][0].update(item="cars"), "the value.orders[0].item: must be one of 'apples'"),
        (lambda value: value.update(orders={}), "the value.orders: must be of type array, got {}"),
    ],
)
def test_an_invalid_value_is_found_and_named(task, change, problem):
    score = edit(task, change)
    assert (score.found, score.valid, score.right) == (True, False, False)
    assert score.problem.startswith(problem)


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value["orders"].reverse(),
        lambda value: value["orders"][0].update(paid=not value["orders"][0]["paid"]),
        lambda value: value["orders"][-1].update(quantity=value["orders"][-1]["quantity"] + 1),
        lambda value: value["orders"][-1].update(customer="Nobody"),
    ],
)
def test_a_valid_value_with_other_facts_is_not_right(task, change):
    score = edit(task, change)
    assert (score.found, score.valid, score.right) == (True, True, False)
    assert "but the facts are" in score.problem


def test_exactly_one_value_is_wanted(task):
    text = json.dumps(task.expected)
    assert task.score(text + "\n" + text).problem == "more than one JSON value"
    assert task.score(json.dumps(task.expected["orders"])).problem.startswith("the value: must be of type object")
    assert not task.score(text[:-1]).right
    assert not task.score(text.replace(", ", ",, ", 1)).right
    twice = text.replace('"paid":', '"paid": false, "paid":', 1)
    assert not task.score(twice).right
    for output in ("", "none", "[1, 2]", '{"orders": NaN}'):
        assert task.score(output).problem == "no JSON value"


def test_numbers_may_have_decimals():
    task = JsonTask("n", "", {"type": "object", "properties": {"n": {"type": "number"}}}, {"n": 4})
    assert task.score('{"n": 4.0}').right
    assert not task.score('{"n": 4.5}').right
    assert not task.score('{"n": true}').valid
    assert not task.score('{"n": 1e999}').right


VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=3),
    lambda its: st.lists(its, max_size=3) | st.dictionaries(st.text(max_size=3), its, max_size=3),
    max_leaves=6,
)


@given(VALUES)
def test_any_value_is_scored(value):
    assert not TASKS[0].score(json.dumps(value)).right
    assert not TASKS[0].score(json.dumps({"orders": value})).right


@pytest.mark.parametrize(
    "piece", ["[", "{", '{"a":', '{"a": 1}', "[1]", '"', "9", "{}", "[[]", "}", '{"orders": [{"paid": true}, ']
)
def test_a_loop_is_read_in_linear_time(piece):
    begin = time.process_time()
    assert not TASKS[0].score(piece * (200_000 // len(piece))).right
    assert not TASKS[0].score('{"orders": [' + piece * (200_000 // len(piece))).right
    assert time.process_time() - begin < 5
