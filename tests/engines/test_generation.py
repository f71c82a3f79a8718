"""One running sequence with a policy against a recomputation from nothing, with rewinds, restarts, forks and drafts."""

import random

import numpy as np

from lz_penalty.engines._generation import LOOPS_ONLY, NO_SECTIONS, Generation, Reading, count_loops, reading_of
from lz_penalty.policy import Sections, Tracker, counters, settings_from_request

FIELDS = (
    {"lz_policy": "default"},
    {"lz_policy": "default", "lz_end_thinking_copies": 3, "lz_stop_copies": 6},
    {"lz_stop_copies": 4},
    {"lz_policy": "default", "lz_end_thinking_copies": 3, "lz_stop_copies": 6, "lz_shadow": True},
)
TEXTS = ("<think>", "</think>", "\n```\n", "\n| a |", " the sea", " man", "\n")
LINES = np.arange(45, dtype=np.int32).reshape(5, 9)


class OnDevice(list):
    """Flags that are still on their way; reading one of them is noted."""

    is_there = False


class Simulation:
    """A generation and, beside it, the plain lists from which everything can be recomputed."""

    def __init__(self, tokenizer, seed):
        self.rng = random.Random(seed)
        self.texts = [tokenizer(text).input_ids for text in TEXTS]
        self.reading = reading_of(tokenizer)
        self.asked = settings_from_request(self.rng.choice(FIELDS))
        self.prompt, self.output = self.some(), []
        self.flags = []  # of every token: `None` where no step was noted
        self.generation = Generation(self.reading, self.asked, self.prompt, settings_rows=LINES)
        self.pending = None

    def some(self):
        return [token for text in self.rng.choices(self.texts, k=self.rng.randint(1, 4)) for token in text]

    def token(self):
        period = 1 + len(self.output) // 90 % 3
        if len(self.output) > 4 and self.rng.random() < 0.96:
            return self.output[-period]
        return self.rng.choice(self.some())

    def push(self, token):
        self.output.append(token)
        self.flags.append(self.pending)
        self.pending = None

    def note(self):
        if self.asked.shadow and self.rng.random() < 0.8:
            self.pending = self.rng.random() < 0.5
            self.generation.note([None, self.pending], 1)

    def recomputed(self, drafts=()):
        tracker = Tracker(self.asked, *self.reading, self.prompt)
        for token in (*self.output, *drafts):
            tracker.push(token)
        return tracker

    def check(self):
        generation, tracker = self.generation, self.recomputed()
        assert generation.length == len(self.output)
        assert generation.section == tracker.section
        assert np.array_equal(generation.settings_row, LINES[tracker.section])
        assert (generation.forced, generation.stopped) == (tracker.forced, tracker.stopped)
        assert generation.ended_thinking == tracker.ended_thinking
        shadow = {}
        if self.asked.shadow:
            flags = [flag for flag in (*self.flags, self.pending) if flag is not None]
            shadow = {"lz_shadow_steps": len(flags), "lz_shadow_changed": sum(flags)}
        assert generation.totals() == tracker.totals() | shadow

    def step(self):
        self.note()
        self.check()
        doing = self.rng.random()
        if doing < 0.8:
            self.push(self.token())
            self.generation.push(self.output[-1])
        elif doing < 0.87:
            self._rewind()
        elif doing < 0.91:
            self._look_at_drafts()
        elif doing < 0.95:
            self._fork()
        elif doing < 0.97:
            self._restart()
        self.check()

    def _rewind(self):
        count = self.rng.randint(0, min(self.generation.rewindable, 20))
        self.generation.rewind(count)
        del self.output[len(self.output) - count :], self.flags[len(self.flags) - count :]
        self.pending = None

    def _look_at_drafts(self):
        drafts = [self.token() for _ in range(self.rng.randint(0, 5))]
        found = self.generation.after_drafts(drafts)
        for i, (line, forced) in enumerate(found):
            tracker = self.recomputed(drafts[:i])
            assert (line[0], forced) == (LINES[tracker.section][0], tracker.forced)
        assert len(found) == len(drafts) + 1

    def _fork(self):
        """The original goes on with other tokens; that must not be seen in the copy."""
        generation = self.generation
        self.generation = generation.copy()
        for token in self.some():
            generation.push(token)

    def _restart(self):
        """A preempted request: the same output again, with or without what was noted."""
        self.generation.restart(self.prompt)
        self.flags, self.pending = [None] * len(self.output), None
        self.generation.extend(self.output)


def test_equals_a_recomputation(tokenizer):
    """And everything happens: sections change, thinking and generations are ended, loops and flags are counted."""
    met = set()
    for seed in range(12):
        simulation = Simulation(tokenizer, seed)
        for _ in range(150):
            simulation.step()
            generation = simulation.generation
            met |= {
                generation.section,
                f"forced {generation.forced is not None}",
                f"stopped {generation.stopped is not None}",
            }
            met |= {name for name, number in generation.totals().items() if number}
    assert met >= {0, 1, 2, "forced True", "forced False", "stopped True", "stopped False", *counters.COUNTERS}


def test_a_live_list_is_read_and_counted_once(tokenizer):
    """What a preempted request comes back with was counted before; what is taken back is read again."""
    asked = settings_from_request({"lz_stop_copies": 50})
    output = [5, 6, 7] * 22
    generation = Generation(reading_of(tokenizer), asked, [1, 2])
    generation.read(output)
    assert set(generation.count().values()) == {0}
    for _ in range(3):
        output.append(8)
        generation.read(output)
    amounts = generation.count()
    assert (amounts["lz_loops_seen"], amounts["lz_loops_left"]) == (0, 1)
    assert set(generation.count().values()) == {0}
    del output[-2:]
    assert generation.read(output)
    assert generation.length == len(output)
    output += [8, 9, 8, 9]
    generation.read(output)
    assert generation.length == len(output)


def test_a_step_whose_token_was_thrown_away_is_not_counted(tokenizer):
    """A prefill in chunks samples after each chunk; a step that is the last is counted without its token."""
    asked = settings_from_request({"lz_policy": "default", "lz_shadow": True})
    generation = Generation(reading_of(tokenizer), asked, [1, 2])
    flags = OnDevice([True])
    for _ in range(3):
        generation.note(flags, 0)
    assert not generation.is_complete
    flags.is_there = True
    assert generation.is_complete
    generation.push(7)
    generation.note(flags, 0)
    totals = generation.totals()
    assert (totals["lz_shadow_steps"], totals["lz_shadow_changed"]) == (2, 2)


class EndsWith:
    """Ends a sequence by one token, after some patience."""

    stop_adds, overrides_masks = 1, True

    def __init__(self):
        self.calls = []

    def token(self, run, length):
        return 99

    def begin(self, run, generation):
        self.calls.append(("begin", run.period, generation.length))

    def wait(self, run, length):
        self.calls.append(("wait", run.period, length))


def test_an_engine_that_ends_by_tokens():
    """The run is named a token early, and the ending is told once that it begins."""
    ending = EndsWith()
    generation = Generation(NO_SECTIONS, settings_from_request({"lz_stop_copies": 6}), [], ending=ending)
    generation.extend([4, 5, 6] * 5 + [4])
    assert (generation.forced, generation.overrides_masks) == (None, False)
    generation.push(5)
    assert (generation.forced, generation.overrides_masks) == (99, True)
    generation.push(6)
    assert ending.calls == [("wait", 3, 17), ("begin", 3, 17), ("wait", 3, 18)]


def test_loops_of_an_output_without_a_policy():
    before = counters.totals()
    count_loops([1, 2, 3] * 30 + [4, 5, 6, 7] + [8] * 70)
    found = {name: number - before[name] for name, number in counters.totals().items() if number != before[name]}
    assert found == {"lz_loops_seen": 2, "lz_loops_left": 1, "lz_loop_tokens": 160}
    assert Generation(NO_SECTIONS, LOOPS_ONLY, []).stopped is None


def test_a_tokenizer_is_read_once(tokenizer, monkeypatch):
    first = reading_of(tokenizer)
    monkeypatch.setattr(Sections, "of", None)
    assert reading_of(tokenizer) is first
    assert isinstance(first, Reading)
