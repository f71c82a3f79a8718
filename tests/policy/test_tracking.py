"""Tracking a generation token by token equals reading its whole text at every step."""

import random

import pytest

from lz_penalty import LZPenaltyError
from lz_penalty.detection import find_repetitions, is_loop, repetition_at_end
from lz_penalty.policy import Ladder, Pair, Policy, RequestPolicy, Sections, Tracker

BYTES = [bytes([i]) for i in range(256)]
PAIR = Pair("thinking", "<t>", "</t>")
SECTIONS_OF = Sections(BYTES, [PAIR])
CLOSERS = {PAIR: tuple(b"</t>")}
END, STOP = 4, 8


def tracker(prompt=b"", end=END, stop=STOP, shadow=False):
    ladder = Ladder(end_thinking_copies=end, stop_copies=stop)
    return Tracker(RequestPolicy(policy=Policy(), ladder=ladder, shadow=shadow), SECTIONS_OF, CLOSERS, prompt)


def seen(one):
    return one.section, one.closing, one.stopped, one.ended_thinking, one.totals()


def texts(rng, count):
    """Motifs, copied a few times, with thinking opened and closed between them."""
    for _ in range(count):
        text = b""
        while len(text) < 300:
            motif = bytes(rng.choices(b"ab<t", k=rng.randint(1, 30)))
            text += motif * rng.choice([1, 1, 3, 6, 10, 40]) + rng.choice([b"", b"<t>", b"</t>", b"x"])
        yield text


def expected(prompt, text):
    """Section, first run over the highest rung, and loops: from the whole text."""
    stopped = None
    for n in range(1, len(text) + 1):
        stopped = stopped or repetition_at_end(text[:n], min_copies=STOP, min_length=16)
    loops = [run for run in find_repetitions(text, min_copies=5, min_length=60) if run.period <= 1024]
    tokens = {i for run in loops for i in range(run.start, run.start + run.length)}
    return SECTIONS_OF.read(prompt + text).number, stopped, len(loops), len(tokens)


def test_the_whole_text_says_the_same():
    rng = random.Random(5)
    stops = loops = 0
    for text in texts(rng, 60):
        one = tracker(b"<t>")
        for token in text:
            one.push(token)
        section, stopped, seen_loops, tokens = expected(b"<t>", text)
        assert one.section == section
        assert (one.stopped is None) == (stopped is None)
        if stopped:
            assert (one.stopped.start, one.stopped.period) == (stopped.start, stopped.period)
        assert (one.loops, one.loop_tokens) == (seen_loops, tokens)
        stops += stopped is not None
        loops += seen_loops
    assert stops > 20
    assert loops > 20


def test_changes_are_announced():
    rng = random.Random(6)
    for text in texts(rng, 30):
        one = tracker(b"<t>")
        for token in text:
            before = one.section, one.forced, one.stopped
            closing = one.closing
            changed = one.push(token)
            assert changed == ((one.section, one.forced, one.stopped) != before or one.closing != closing)


def test_taking_tokens_back():
    """After a rewind, everything is as if those tokens had never come."""
    rng = random.Random(7)
    for text in texts(rng, 25):
        one, history = tracker(b"<t>"), []
        for token in text:
            one.push(token)
            history.append(token)
            if rng.random() < 0.05:
                for extra in rng.choices(b"ab<t/>", k=5) + [token] * 30:
                    one.push(extra)
                one.rewind(35)
            if rng.random() < 0.02:
                count = min(rng.randint(1, 40), len(history))
                one.rewind(count)
                del history[-count:]
        fresh = tracker(b"<t>")
        for token in history:
            fresh.push(token)
        assert seen(one) == seen(fresh)


def test_a_rewind_has_a_limit():
    one = tracker()
    for token in b"abc" * 200:
        one.push(token)
    with pytest.raises(LZPenaltyError, match="count = 257: must be an integer from 0 to 256"):
        one.rewind(257)
    one.rewind(256)
    assert one.section == tracker().section


def generate(one, wanted, limit=400):
    """Write `wanted` as a model would, interrupted by the tokens that are forced."""
    out, left = [], iter(wanted)
    while len(out) < limit and one.stopped is None:
        token = one.forced
        if token is None:
            token = next(left, None)
            if token is None:
                break
        out.append(token)
        one.push(token)
    return bytes(out)


def test_thinking_is_ended_and_then_the_generation():
    one = tracker(b"<t>")
    out = generate(one, b"abcde " * 100)
    assert out == b"abcde " * 4 + b"</t>" + b"abcde " * 8
    assert one.ended_thinking.copies == 4
    assert one.stopped.copies == 8
    assert one.stopped.start == len(b"abcde " * 4 + b"</t>")


def test_each_rung_alone():
    assert generate(tracker(b"<t>", end=None), b"ab" * 100) == b"ab" * 8
    assert generate(tracker(b"<t>", stop=None), b"ab" * 100) == b"ab" * 8 + b"</t>" + b"ab" * 92
    assert generate(tracker(b"", stop=None), b"ab" * 100) == b"ab" * 100
    assert generate(tracker(b"<t>", None, None), b"ab" * 100) == b"ab" * 100


def test_a_marker_that_begins_like_the_loop():
    assert generate(tracker(b"<t>"), b"<" * 40)[:25] == b"<" * 16 + b"</t>" + b"<" * 5


def test_a_token_in_between_begins_the_marker_anew():
    """An engine writes the marker one token late."""
    one = tracker(b"<t>")
    for token in b"abcd" * 4:
        one.push(token)
    assert bytes(one.closing) == b"</t>"
    assert not one.push(ord("a"))
    assert bytes(one.closing) == b"</t>"
    assert one.push(ord("<"))
    assert one.push(ord("b"))
    assert bytes(one.closing) == b"</t>"
    for token in b"</t>":
        assert one.forced == token
        assert one.push(token)
    assert one.forced is None


def test_shadow_mode_counts_and_asks_for_nothing():
    one, acting = tracker(b"<t>", shadow=True), tracker(b"<t>")
    for token in b"abcde " * 100:
        before = one.section
        assert one.push(token) == (one.section != before)
        assert (one.forced, one.closing, one.stopped, one.ended_thinking) == (None, (), None, None)
    found = {"lz_loops_seen": 1, "lz_loops_left": 0, "lz_loop_tokens": 600, "lz_thinking_ended": 1, "lz_stopped": 1}
    assert one.totals() == found
    one.push(ord("x"))
    assert one.totals() == found | {"lz_loops_left": 1}
    one.rewind(1)
    assert one.totals() == found
    generate(acting, b"abcde " * 100)
    assert acting.totals() == dict.fromkeys(found, 0) | {"lz_thinking_ended": 1, "lz_stopped": 1}
    assert is_loop(b"abcde " * 100)


def test_without_ladder_and_shadow_nothing_is_looked_for():
    one = tracker(b"<t>", None, None)
    for token in b"ab" * 100 + b"</t>":
        one.push(token)
    assert seen(one)[1:] == ((), None, None, dict.fromkeys(one.totals(), 0))
    assert one.section == SECTIONS_OF.start.number
