"""The incremental detector against brute force after every token, with rewinds; streams that are stopped."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lz_penalty import LZPenaltyError
from lz_penalty.detection import RepetitionDetector, find_repetition, repetition_at_end, stop_on_repetition
from tests.support import quick_or_deep

DEPTH = 12  # how far the detectors of these tests can rewind


def trailing_lengths(history, max_period):
    """For every period the items of the stretch with that period which the history ends with: the definition."""
    lengths = {}
    for period in range(1, min(max_period, len(history)) + 1):
        length = period
        while length < len(history) and history[-1 - length] == history[-1 - length + period]:
            length += 1
        lengths[period] = length
    return lengths


def counting(history, max_period, min_copies, min_length):
    """(length, period) of the runs at the end that count, each with its smallest period."""
    smallest = {}
    for period, length in trailing_lengths(history, max_period).items():
        if length / period >= min_copies and length >= min_length:
            smallest.setdefault(length, period)
    return set(smallest.items())


def place(found):
    return found and (found.length, found.period)


def check(found, history):
    """Check that the run ends here and that its fields agree."""
    assert found.start + found.length == len(history)
    assert found.unit == tuple(history[found.start : found.start + found.period])
    assert found.copies == found.length / found.period
    assert found.coverage == found.length / len(history)


pieces = st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=9), st.integers(1, 9))
fibonacci = st.integers(5, 60).map(lambda n: (("0100101001001010010100100101001001" * 2)[:n], 1))
steps = st.lists(st.one_of(pieces, pieces, fibonacci, st.integers(1, DEPTH)), max_size=8)
limits = st.tuples(
    st.sampled_from([1, 2, 3, 7, 30]), st.sampled_from([3, 3.2, 4, 5, 6.5]), st.sampled_from([1, 5, 12, 30])
)


@settings(max_examples=quick_or_deep(100, 300))
@given(steps, limits)
def test_equals_brute_force_after_every_token(steps, limits):
    max_period, min_copies, min_length = limits
    options = {"max_period": max_period, "min_copies": min_copies, "min_length": min_length}
    detector = RepetitionDetector(**options, max_rewind=DEPTH)
    history, longest = [], 0
    for step in steps:
        if isinstance(step, int):  # a rewind
            count = min(step, len(history) - max(0, longest - DEPTH))
            detector.rewind(count)
            del history[len(history) - count :]
            assert detector.length == len(history)
            step = ([], 0)
        unit, copies = step
        for token in [int(token) for token in unit] * copies:
            before = counting(history, max_period, min_copies, min_length)
            history.append(token)
            longest = max(longest, len(history))
            now = counting(history, max_period, min_copies, min_length)
            grown = {(length + 1, period) for length, period in before}
            reported = detector.push(token)
            assert place(reported) == max(now - grown, default=None)
            assert place(detector.current) == max(now, default=None)
            assert detector.current == repetition_at_end(history, **options)
            for found in filter(None, (reported, detector.current)):
                check(found, history)


def test_the_check_sees_runs_of_two_periods_at_once():
    """The check above would be weaker if no history ended with two runs that count."""
    history = [0, 0, 0, 1] * 3 + [0, 0, 0]
    assert counting(history, 30, 3, 1) == {(15, 4), (3, 1)}
    detector = RepetitionDetector(min_copies=3, min_length=1)
    detector.extend(history)
    assert place(detector.current) == (15, 4)


@given(steps, limits)
def test_agrees_with_the_offline_search(steps, limits):
    _, min_copies, min_length = limits
    history = [
        int(token) for unit, copies in filter(lambda s: not isinstance(s, int), steps) for token in unit * copies
    ]
    detector = RepetitionDetector(max_period=100, min_copies=min_copies, min_length=min_length)
    found = detector.extend(history)
    offline = find_repetition(history, min_copies=min_copies, min_length=min_length)
    assert (found is None) == (offline is None or offline.period > 100)


@pytest.mark.parametrize("period", [1, 2, 23, 24, 25, 26, 50, 51, 100, 511, 1023, 1024])
@pytest.mark.parametrize("lead", [0, 1, 17, 500])
def test_reports_at_the_very_token(period, lead):
    """Units of every length, at every phase: long ones are only found if the detector looks in time."""
    rng = np.random.default_rng(period)
    noise = (1000 + rng.permutation(lead)).tolist()
    unit = rng.permutation(period).tolist() if period > 30 else [*rng.integers(0, 2, period - 1).tolist(), 9]
    need = max(5 * period, 60)
    stream = noise + (unit * (need // period + 1))[:need]
    detector = RepetitionDetector()
    found = [detector.push(token) for token in stream]
    assert found[:-1] == [None] * (len(stream) - 1)
    assert (found[-1].start, found[-1].period, found[-1].length) == (lead, period, need)
    assert detector.push(5000) is None
    assert detector.current is None


def test_a_unit_longer_than_the_limit_is_no_run():
    unit = list(range(9))
    detector = RepetitionDetector(max_period=8, min_copies=3, min_length=1)
    assert detector.extend(unit * 20) is None
    assert detector.current is None


def test_a_run_that_goes_on_is_reported_once_and_keeps_its_start():
    detector = RepetitionDetector(max_period=4, min_copies=3, min_length=1)
    stream = [8, *[1, 2, 3] * 10_000]
    reports = [found for token in stream if (found := detector.push(token))]
    assert len(reports) == 1
    assert (detector.current.start, detector.current.length, detector.current.unit) == (1, 30_000, (1, 2, 3))
    detector.rewind(200)
    assert (detector.current.start, detector.current.length, detector.current.unit) == (1, 29_800, (1, 2, 3))


def test_memory_is_bounded():
    detector = RepetitionDetector(max_period=10, min_copies=3, min_length=1, max_rewind=5)
    rng = np.random.default_rng(1)
    for token in rng.integers(0, 2, 20_000).tolist():
        detector.push(token)
        assert len(detector._history) <= 2 * (30 + 5) + 2
        assert len(detector._changes) <= 40


def test_rewinding_too_far_is_refused_and_changes_nothing():
    detector = RepetitionDetector(min_copies=3, min_length=3, max_rewind=4)
    detector.extend([1, 1, 1, 1, 1, 1])
    with pytest.raises(LZPenaltyError, match="count = 5: must be an integer from 0 to 4"):
        detector.rewind(5)
    assert detector.current.length == 6
    detector.rewind(3)
    with pytest.raises(LZPenaltyError, match="count = 2: must be an integer from 0 to 1"):  # 4 after the longest
        detector.rewind(2)
    detector.rewind(1)
    assert detector.length == 2
    assert detector.push(1).length == 3  # reported again: the tokens that had reached it are gone
    with pytest.raises(LZPenaltyError, match="count = -1"):
        detector.rewind(-1)


def test_settings_change_nothing_between_detectors():
    one, two = RepetitionDetector(min_copies=3, min_length=3), RepetitionDetector(min_copies=3, min_length=3)
    one.extend([1, 1])
    assert two.push(1) is None
    assert one.push(1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_period": 0}, "max_period = 0: must be an integer from 1"),
        ({"max_period": 10**9}, "max_period = 1000000000"),
        ({"min_copies": 2}, "min_copies = 2: must be a finite number from 3"),
        ({"min_length": 0}, "min_length = 0"),
        ({"max_rewind": -1}, "max_rewind = -1"),
        ({"max_period": 65_536, "min_copies": 20}, "use a smaller max_period"),
    ],
)
def test_bad_settings_are_named(options, message):
    with pytest.raises(LZPenaltyError, match=message):
        RepetitionDetector(**options)


@pytest.mark.parametrize("token", [1.5, "a", None, 2**64])
def test_what_is_not_a_token_is_refused_and_not_kept(token):
    detector = RepetitionDetector(min_copies=3, min_length=3)
    detector.extend([1, 1])
    with pytest.raises(LZPenaltyError, match=r"token = .*: must be an integer"):
        detector.push(token)
    assert detector.push(np.int64(1)).unit == (1,)


def test_a_stream_is_stopped_and_closed():
    closed = []

    def endless():
        try:
            yield from itertools.chain(range(100), itertools.cycle([7, 8]))
        finally:
            closed.append(True)

    stream = stop_on_repetition(endless(), min_copies=5, min_length=20)
    assert list(stream) == [*range(100), *[7, 8] * 10]
    assert closed == [True]
    assert (stream.repetition.start, stream.repetition.unit) == (100, (7, 8))
    assert list(stream) == []


def test_a_stream_that_ends_by_itself():
    stream = stop_on_repetition(range(1000))
    assert list(stream) == list(range(1000))
    assert stream.repetition is None


@pytest.mark.parametrize(
    ("item", "key", "unit"),
    [
        ("no ", None, "no "),
        (b"no ", None, tuple(b"no ")),
        ([1, 2, 3], None, (1, 2, 3)),
        (np.int32(5), None, (5,)),
        ({"id": 6}, lambda item: item["id"], (6,)),
    ],
)
def test_streams_of_anything(item, key, unit):
    stream = stop_on_repetition(itertools.repeat(item), key=key)
    assert 160 <= len(list(stream)) <= 480
    assert stream.repetition.unit == unit


def test_needs_no_library_but_numpy():
    code = "import lz_penalty.detection as d, sys; d.RepetitionDetector().push(1); print('numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
