"""Reading costs a bounded number of steps and states, even for texts that are made to cost much."""

import gc
import random
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from lz_penalty.policy import KNOWN, Sections, State
from lz_penalty.policy import _sections as module
from lz_penalty.policy._places import MOST_INDENT, MOST_RUN, Code
from research.labelled.sections import outputs

BYTES = [bytes([i]) for i in range(256)]
RUNS = [b"`" * n for n in range(2, 64)]
LINES = [b"a\n" + b" " * n for n in range(64)]
NESTED = [b"\n" + b" " * i + b"`" * n + end for i in range(17) for n in range(3, 17) for end in (b"", b"\n", b"py\n")]


def alternating(rng, count):
    """Ids of `RUNS + LINES`: backticks and indented lines in turns."""
    return [62 + rng.randrange(64) if i % 2 else rng.randrange(62) for i in range(count)]


@pytest.fixture
def live():
    """A function that counts the states that exist since the test began."""
    gc.collect()
    gc.freeze()  # `gc` skips the millions of objects of the other modules

    def count():
        gc.collect()
        return sum(type(one) is State for one in gc.get_objects())

    yield count
    gc.unfreeze()


@pytest.fixture
def steps(monkeypatch):
    """The bytes that were looked at."""
    seen = []
    after = Sections._after

    def counted(self, place, node, byte):
        seen.append(byte)
        return after(self, place, node, byte)

    monkeypatch.setattr(Sections, "_after", counted)
    return seen


def test_runs_of_equal_bytes(steps):
    """Only a bounded number of a token's bytes is read."""
    sections = Sections([b"\n" + b" " * 500 + b"`" * 500 + b" " * 500 + b"-" * 500], KNOWN)
    del steps[:]
    assert sections.read([0]).section == "code"
    assert len(steps) <= MOST_INDENT + MOST_RUN + 10


def test_alternating_runs_and_indents(steps):
    """There are few states. Most tokens take no step, and a second reading takes none."""
    sections = Sections(RUNS + LINES, KNOWN)
    tokens = alternating(random.Random(0), 20_000)
    sections.read(tokens)
    assert len(sections._states) < 1_000
    assert len(steps) < 4 * len(tokens)
    del steps[:]
    sections.read(tokens)
    assert not steps


def test_longer_runs_and_indents_count_as_sixteen():
    sections = Sections(BYTES, KNOWN)
    for indent, run, close in ((15, 16, 16), (16, 40, 16), (200, 40, 300)):
        opened = sections.read(b" " * indent + b"`" * run + b"py\nx\n")
        assert isinstance(opened.place, Code)
        assert sections.read(b"`" * 15 + b"\n", opened).section == "code"
        assert sections.read(b" " * indent + b"`" * close + b"\n", opened).section == "answer"


def test_nothing_before_the_last_turn_is_looked_at(steps):
    sections = Sections([*RUNS, *LINES, b"<|im_end|>"], KNOWN, [126])
    sections.read([*alternating(random.Random(1), 1_000), 126])
    assert len(steps) <= 5  # for the state after an ordinary word


def test_reading_from_the_last_turn_is_reading_all():
    rng = random.Random(2)
    pieces = [
        b"```",
        b"\n",
        b"py",
        b"| a",
        b'{"',
        b"}",
        b"<think>",
        b"</think>",
        b"<tool_call>",
        b" ",
        b"x",
        b"<|im_end|>",
    ]
    sections = Sections(pieces, KNOWN, [11])
    for _ in range(1_000):
        tokens = rng.choices(range(12), k=rng.randint(0, 40))
        begin = want = sections.read(rng.choices(range(11), k=5))
        for token in tokens:
            want = sections.advance(want, token)
        assert sections.read(tokens, begin) is want
        assert sections.read(iter(tokens), begin) is want


def test_what_is_remembered_is_bounded(monkeypatch, live):
    """No text comes back to an earlier state. States reachable from the start or from held states are dropped too."""
    monkeypatch.setattr(module, "MAX_KNOWN", 2_000)
    sections = Sections(NESTED, KNOWN)
    rng = random.Random(3)
    held, most = [sections.start], 0
    for _ in range(30):
        for _ in range(100):
            sections.read(rng.choices(range(len(NESTED)), k=5))
        held = [*held[-4:], sections.read(rng.choices(range(len(NESTED)), k=500), held[-1])]
        for one in held:
            sections.read(rng.choices(range(len(NESTED)), k=10), one)
        assert len(sections._states) + sections._followers <= 2_000 + 5
        most = max(most, live())
    assert 500 < most <= 2_000 + 5 + 3 * len(held)


def test_forgetting_changes_nothing(monkeypatch):
    plenty, little = Sections(BYTES, KNOWN), Sections(BYTES, KNOWN)
    rng = random.Random(4)
    texts = [output.text.encode() for output in outputs()[::3]]
    texts.append(bytes(rng.choices(b"{[` \n", k=400)))
    want = [walked(plenty, text) for text in texts]
    monkeypatch.setattr(module, "MAX_KNOWN", 12)
    assert [walked(little, text) for text in texts] == want
    assert little._states[little.start.place, 0] is little.start


def walked(sections, text):
    """The section before every byte, and the places of some, read on from a state that was held."""
    state, seen = sections.start, []
    for i, byte in enumerate(text):
        seen.append(state.section)
        if i % 100 == 0:
            seen.append(sections.read(text[i : i + 5], state).place)
        state = sections.advance(state, byte)
    return seen


def test_threads(monkeypatch):
    """All threads share one cache, which is emptied often."""
    texts = [output.text.encode() for output in outputs()[::3]]
    want = [Sections(BYTES, KNOWN).read(text).place for text in texts]
    monkeypatch.setattr(module, "MAX_KNOWN", 200)
    sections = Sections(BYTES, KNOWN)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda text: sections.read(text).place, texts * 4))
    finally:
        sys.setswitchinterval(interval)
    assert found == want * 4
