"""Tandem repeats against their definition, in every kind of sequence, and with the smallest period."""

import dataclasses
import importlib.util
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lz_penalty import LZPenaltyError
from lz_penalty.detection import Repetition, find_repetition, find_repetitions, is_degenerate, is_loop
from lz_penalty.detection import _runs as runs
from lz_penalty.loops import trailing_loop


def fibonacci(length):
    a, b = [0], [0, 1]
    while len(b) < length:
        a, b = b, b + a
    return b[:length]


def thue_morse(length):
    return [i.bit_count() % 2 for i in range(length)]


motifs = st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=9), st.integers(1, 8)), max_size=6)
repetitive = motifs.map(lambda parts: [item for motif, copies in parts for item in motif * copies])
sizes = st.integers(0, 90)
sequences = st.one_of(
    repetitive,
    st.lists(st.integers(0, 1), max_size=90),
    sizes.map(fibonacci),
    sizes.map(thue_morse),
    sizes.map(lambda length: [2] * length),
    st.tuples(repetitive, sizes.map(fibonacci), repetitive).map(lambda parts: [*parts[0], *parts[1], *parts[2]]),
)
copies_wanted = st.sampled_from([2, 2.2, 2.5, 3, 4 + 1 / 3, 5, 20])


def brute_force_all(sequence, min_copies, min_length):
    """Every period and every maximal stretch that has it; a stretch counts with its smallest period only."""
    n = len(sequence)
    smallest = {}
    for period in range(1, n):
        start = 0
        while start < n - period:
            length = period
            while start + length < n and sequence[start + length] == sequence[start + length - period]:
                length += 1
            if length / period >= min_copies and length >= min_length:
                smallest.setdefault((start, start + length), period)
            start += length - period + 1
    return sorted((start, -end, period) for (start, end), period in smallest.items())


def brute_force(sequence, min_copies, min_length):
    """The longest, then the earliest: every start and every period."""
    n = len(sequence)
    found = []
    for start in range(n):
        for period in range(1, n - start + 1):
            length = period
            while start + length < n and sequence[start + length] == sequence[start + length - period]:
                length += 1
            if length / period >= min_copies and length >= min_length:
                found.append((-length, start, period))
    if not found:
        return None
    length, start, period = min(found)
    return start, period, -length


@pytest.fixture(scope="module")
def interpreted():
    """The module as it is without Numba."""
    spec = importlib.util.spec_from_file_location("runs_without_numba", runs.__file__)
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, {"numba": None, "lz_penalty.kernels._compiling": None}):
        spec.loader.exec_module(module)
    assert not module.COMPILED
    assert runs.COMPILED
    return module


@given(sequences, copies_wanted, st.integers(1, 30))
def test_all_runs_equal_their_definition(sequence, min_copies, min_length):
    found = find_repetitions(sequence, min_copies=min_copies, min_length=min_length)
    places = [(one.start, -one.start - one.length, one.period) for one in found]
    assert places == brute_force_all(sequence, min_copies, min_length)


@given(sequences, copies_wanted, st.integers(1, 30))
def test_all_runs_equal_their_definition_without_numba(interpreted, sequence, min_copies, min_length):
    found = interpreted.find_runs(np.array(sequence, dtype=np.int64), min_copies, min_length)
    assert sorted((start, -end, period) for start, period, end in found) == brute_force_all(
        sequence, min_copies, min_length
    )


@pytest.mark.parametrize("make", [fibonacci, thue_morse, lambda n: [1] * n, lambda n: ([0] * 30 + [1]) * (n // 31)])
@pytest.mark.parametrize("min_copies", [2, 3, 5])
def test_long_words_that_are_hard_for_searches(make, min_copies):
    sequence = make(700)
    found = find_repetitions(sequence, min_copies=min_copies, min_length=1)
    places = [(one.start, -one.start - one.length, one.period) for one in found]
    assert places == brute_force_all(sequence, min_copies, 1)


def test_runs_that_overlap_with_different_periods():
    sequence = [1, 2, 3] * 6 + [1, 2] * 6
    found = find_repetitions(sequence, min_copies=5, min_length=10)
    assert [(one.start, one.period, one.length) for one in found] == [(0, 3, 20), (18, 2, 12)]


@given(sequences, copies_wanted, st.integers(1, 30))
def test_equals_its_definition(sequence, min_copies, min_length):
    expected = brute_force(sequence, min_copies, min_length)
    found = find_repetition(sequence, min_copies=min_copies, min_length=min_length)
    assert (found and (found.start, found.period, found.length)) == expected
    if found:
        assert found.copies == found.length / found.period >= min_copies
        assert found.coverage == found.length / len(sequence) <= 1
        assert found.unit == tuple(sequence[found.start : found.start + found.period])


def test_the_definition_is_met_with_something():
    """The sequences of the check above contain repeats."""
    assert brute_force([0, 1, 2, 1, 2, 1, 2, 1], 3, 7) == (1, 2, 7)
    assert brute_force([0, 1, 1, 2, 0], 3, 1) is None
    assert brute_force_all([0, 0, 1, 0, 0, 1, 0, 0], 2, 2) == [(0, -8, 3), (0, -2, 1), (3, -5, 1), (6, -8, 1)]
    assert len(brute_force_all(fibonacci(90), 2, 1)) > 50


@given(sequences, copies_wanted)
def test_the_unit_is_primitive_and_the_stretch_cannot_grow(sequence, min_copies):
    found = find_repetition(sequence, min_copies=min_copies, min_length=1)
    if found is None:
        return
    unit, period, end = list(found.unit), found.period, found.start + found.length
    assert not any(period % part == 0 and unit == unit[:part] * (period // part) for part in range(1, period))
    assert sequence[found.start : end] == (unit * (found.length // period + 1))[: found.length]
    assert end == len(sequence) or sequence[end] != sequence[end - period]
    assert found.start == 0 or sequence[found.start - 1] != sequence[found.start - 1 + period]


@given(sequences)
def test_never_shorter_than_a_loop_at_the_end(sequence):
    loop = trailing_loop(sequence)
    if loop:
        assert find_repetition(sequence, min_copies=3, min_length=1).length >= loop.length


@given(sequences, copies_wanted, st.integers(1, 30))
def test_every_kind_of_sequence_gives_the_same(sequence, min_copies, min_length):
    limits = {"min_copies": min_copies, "min_length": min_length}
    expected = find_repetition(sequence, **limits)
    text = "".join("aß\U0001f40d"[item] for item in sequence)
    kinds = [
        tuple(sequence),
        np.array(sequence, dtype=np.int32),
        np.array(sequence, dtype=np.uint16),
        text,
        bytes(sequence),
    ]
    kinds += [torch.tensor(sequence, dtype=torch.long), np.repeat(np.array(sequence, dtype=np.int64), 2)[::2]]
    for kind in kinds:
        found = find_repetition(kind, **limits)
        if expected is None:
            assert found is None
            continue
        begin, end = expected.start, expected.start + expected.period
        unit = kind[begin:end] if isinstance(kind, (str, bytes)) else expected.unit
        assert found == dataclasses.replace(expected, unit=unit)
        assert type(found.start) is int


def test_twelve_dashes_have_period_one():
    found = find_repetition("a table " + "-" * 12 + " ends", min_copies=3, min_length=12)
    assert found == Repetition(start=8, period=1, length=12, copies=12.0, coverage=12 / 25, unit="-")


def test_a_period_of_copies_that_are_cut_short():
    sequence = [9, 9, *([1, 2, 3, 4] * 5)[:-1], 9]
    assert find_repetition(sequence, min_copies=4.75, min_length=19).copies == 4.75
    assert find_repetition(sequence, min_copies=4.76, min_length=19) is None
    assert find_repetition(sequence, min_copies=4.75, min_length=20) is None


def test_the_longest_wins_then_the_earliest():
    short, long = [1, 2] * 10, [3, 4, 5] * 10
    assert find_repetition([*short, 0, *long], min_length=10).start == 21
    assert find_repetition([*long, 0, *short], min_length=10).start == 0
    # Of equal length, the later one with the smaller period: the earlier one counts.
    assert find_repetition([*[1, 2, 3] * 4, 0, *[7] * 12], min_copies=4, min_length=12).period == 3


@pytest.mark.parametrize("empty", [[], (), "", b"", np.zeros(0, dtype=np.int64)])
def test_nothing_in_nothing(empty):
    assert find_repetition(empty) is None
    assert not is_loop(empty)
    assert not is_degenerate(empty)


def test_the_limits_of_a_loop_and_of_degeneration():
    assert is_loop([*range(12)] * 5)
    assert not is_loop(([*range(12)] * 5)[1:])
    assert not is_loop([*range(11)] * 5)
    assert not is_loop([*range(20)] * 4)
    assert is_loop([1] * 60)
    assert not is_loop([1] * 59)
    assert is_degenerate([1] * 20)
    assert not is_degenerate([1] * 19)
    assert is_degenerate([0, *[*range(40)] * 20, 0])
    assert not is_degenerate(([*range(40)] * 20)[1:])


def test_a_unit_that_almost_recurs_is_no_loop():
    counted = [token for i in range(40) for token in (1, 2, 3, 100 + i)]
    assert find_repetition(counted, min_copies=2, min_length=2) is None


def test_surrogates_are_characters_too():
    assert find_repetition("\ud800" * 60).unit == "\ud800"


@pytest.mark.parametrize(
    "sequence",
    [[[1, 2], [3, 4]], [[1], [2, 3]], [1.0, 2.0], [True, False], ["a"], [None], 5, {1, 2}, np.zeros((2, 2), int)],
)
def test_what_is_not_a_sequence_of_ints_is_refused(sequence):
    with pytest.raises(LZPenaltyError, match=r"(?s)sequence = .*: must be a one-dimensional sequence of ints"):
        find_repetition(sequence)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"min_copies": 1}, "min_copies = 1: must be a finite number from 2"),
        ({"min_copies": float("nan")}, "min_copies = nan"),
        ({"min_copies": True}, "min_copies = True"),
        ({"min_length": 0}, "min_length = 0: must be an integer from 1"),
        ({"min_length": 2.5}, "min_length = 2.5"),
    ],
)
def test_bad_limits_are_named(limits, message):
    with pytest.raises(LZPenaltyError, match=message):
        find_repetition([1, 2, 3], **limits)


def test_a_result_is_a_value():
    first, second = find_repetition([1] * 60), find_repetition(np.ones(60, dtype=np.int64))
    assert first == second
    assert hash(first) == hash(second)
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.start = 1


def test_needs_numpy_alone():
    code = "import lz_penalty.detection, sys; print(*({'torch', 'transformers', 'numba', 'rich'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
