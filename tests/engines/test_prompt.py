"""`LearnedPrompt`: which calls begin a generation, and where their prompts end."""

import numpy as np
import pytest
import torch

from lz_penalty.engines._prompt import MAX_GENERATIONS, MAX_IDS, LearnedPrompt


def ids(*tokens):
    return np.array(tokens)


@pytest.mark.parametrize("array", [np.array, torch.tensor])
def test_one_generation_with_drafts_that_are_taken_back(array):
    learned = LearnedPrompt()
    calls = [(1, 2, 3), (1, 2, 3, 4), (1, 2, 3, 4, 5), (1, 2, 3, 7), (1, 2, 3, 7, 8), (1, 2, 3)]
    assert [learned.end(array(call)) for call in calls] == [3] * len(calls)


def test_what_begins_a_generation():
    learned = LearnedPrompt()
    assert learned.end(ids(1, 2)) == 2
    assert learned.end(ids(1, 2, 3, 4)) == 4  # a chat that goes on: two tokens longer
    assert learned.end(ids(9, 2, 3)) == 3  # another prompt
    assert learned.end(ids(1)) == 1  # a shorter one
    assert learned.end(ids(1, 2, 3, 4, 5)) == 4


def test_generations_take_turns():
    learned = LearnedPrompt()
    prompts = [[1, 2], [3, 4, 5], [1, 2, 9, 9, 9]]
    for step in range(4):
        for prompt in prompts:
            assert learned.end(ids(*prompt, *range(10, 10 + step))) == len(prompt)


@pytest.mark.parametrize("array", [np.array, torch.tensor])
def test_batches_and_a_caller_that_writes_to_its_ids(array):
    learned = LearnedPrompt()
    batch = array([[0, 1, 2], [3, 4, 5]])
    assert learned.end(batch) == 3
    assert learned.end(array([[0, 1, 2, 6], [3, 4, 5, 7]])) == 3
    batch[:] = 0
    assert learned.end(array([[0, 1, 2, 6, 8], [3, 4, 5, 7, 9]])) == 3
    assert learned.end(array([[0, 1, 2, 6]])) == 4  # another number of rows


def test_memory_is_bounded():
    learned = LearnedPrompt()
    for first in range(MAX_GENERATIONS + 10):
        learned.end(ids(first, 0))
    assert len(learned._known) == MAX_GENERATIONS
    for first in range(4):
        learned.end(np.full(MAX_IDS // 2, first))
    assert [prompt.size for prompt, _ in learned._known] == [MAX_IDS // 2] * 2
    learned.end(np.zeros(2 * MAX_IDS, np.int8))
    assert learned.end(np.zeros(2 * MAX_IDS + 1, np.int8)) == 2 * MAX_IDS
