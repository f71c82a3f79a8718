"""`LearnedPrompt`: which calls begin a generation, and where their prompts end."""

import random

import numpy as np
import pytest
import torch

from lz_penalty.engines import _prompt
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
    assert len(learned._prompts) == MAX_GENERATIONS
    for first in range(4):
        learned.end(np.full(MAX_IDS // 2, first))
    assert [prompt.size for prompt in learned._prompts] == [MAX_IDS // 2] * 2
    learned.end(np.zeros(2 * MAX_IDS, np.int8))
    assert learned.end(np.zeros(2 * MAX_IDS + 1, np.int8)) == 2 * MAX_IDS


class Definition:
    """`LearnedPrompt` as a search of all generations, the newest first."""

    def __init__(self):
        self.known = []

    def end(self, ids):
        for place, (prompt, longest) in enumerate(self.known):
            end = prompt.shape[-1]
            if end <= ids.shape[-1] <= longest + 1 and np.array_equal(ids[..., :end], prompt):
                self.known.insert(0, (prompt, max(longest, ids.shape[-1])))
                del self.known[place + 1]
                return end
        self.known = [(ids.copy(), ids.shape[-1]), *self.known[: _prompt.MAX_GENERATIONS - 1]]
        while len(self.known) > 1 and sum(prompt.size for prompt, _ in self.known) > _prompt.MAX_IDS:
            self.known.pop()
        return ids.shape[-1]


def test_it_is_a_search_of_all_generations(monkeypatch):
    """Also for prompts that begin with other prompts, drafts that are taken back, batches, and memory that is full."""
    monkeypatch.setattr(_prompt, "MAX_GENERATIONS", 12)
    monkeypatch.setattr(_prompt, "MAX_IDS", 60)
    rng = random.Random(1)
    for kind in [np.int32, np.int64] * 150:
        learned, definition = LearnedPrompt(), Definition()
        running = []
        for _ in range(80):
            if not running or rng.random() < 0.2:
                begin = rng.choice(running)[: rng.randrange(6)] if running and rng.random() < 0.5 else []
                running.append(begin + [rng.randrange(3) for _ in range(rng.randrange(4))])
            ids = rng.choice(running)
            ids += [rng.randrange(3) for _ in range(rng.choice((0, 1, 1, 1, 2)))]
            given = np.array(ids[: rng.choice((len(ids), max(0, len(ids) - 1)))], kind)
            given = np.stack([given] * rng.choice((1, 2))) if rng.random() < 0.3 else given
            assert learned.end(given) == definition.end(given)
            assert [prompt.tolist() for prompt in learned._prompts] == [one.tolist() for one, _ in definition.known]


@pytest.mark.parametrize("order", ["turns", "back and forth", "any"])
def test_the_number_of_comparisons_does_not_grow_with_the_sequences(monkeypatch, order):
    """mlx-lm's batches take turns: 1,000 sequences took 1.8 s for each token of all."""
    calls = []
    monkeypatch.setattr(_prompt, "_equal", lambda one, other: calls.append(1) or np.array_equal(one, other))
    rng = np.random.default_rng(0)
    learned = LearnedPrompt()
    begin = rng.integers(0, 9, 20)  # of all prompts, as from a template of a chat
    prompts = [np.append(begin, rng.integers(0, 50_000, rng.integers(5, 40))) for _ in range(300)]
    places = np.arange(300)
    for step in range(5):
        most = 0
        for place in places:
            calls.clear()
            assert learned.end(np.append(prompts[place], np.full(step, 7))) == len(prompts[place])
            most = max(most, len(calls))
        assert most <= 2
        places = {"turns": places, "back and forth": places[::-1], "any": rng.permutation(300)}[order]
