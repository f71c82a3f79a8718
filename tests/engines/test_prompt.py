"""`LearnedPrompt`: which calls begin a generation, and where their prompts end."""

import numpy as np

from lz_penalty.engines._prompt import MAX_GENERATIONS, LearnedPrompt


def ids(*tokens):
    return np.array(tokens)


def test_one_generation_with_drafts_that_are_taken_back():
    learned = LearnedPrompt()
    calls = [ids(1, 2, 3), ids(1, 2, 3, 4), ids(1, 2, 3, 4, 5), ids(1, 2, 3, 7), ids(1, 2, 3, 7, 8), ids(1, 2, 3)]
    assert [learned.end(call) for call in calls] == [3] * len(calls)


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


def test_batches_and_a_caller_that_writes_to_its_ids():
    learned = LearnedPrompt()
    batch = np.array([[0, 1, 2], [3, 4, 5]])
    assert learned.end(batch) == 3
    assert learned.end(np.concatenate([batch, [[6], [7]]], 1)) == 3
    batch[:] = 0
    assert learned.end(np.array([[0, 1, 2, 6, 8], [3, 4, 5, 7, 9]])) == 3


def test_memory_is_bounded():
    learned = LearnedPrompt()
    for first in range(MAX_GENERATIONS + 10):
        learned.end(ids(first, 0))
    assert len(learned._known) == MAX_GENERATIONS
