"""The finder of trailing runs and periods against its definition."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lz_penalty import LZPenaltyConfig, reference
from lz_penalty.loops import TrailingLoop, trailing_loop, trailing_runs
from tests.support.backends import ALL

motifs = st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=5), st.integers(1, 8)), max_size=6)
sequences = motifs.map(lambda parts: [item for motif, copies in parts for item in motif * copies])


def naive_run(items, period):
    run = 0
    while run + period < len(items) and items[-1 - run] == items[-1 - run - period]:
        run += 1
    return run


@given(sequences)
def test_runs_equal_their_definition(items):
    assert trailing_runs(items) == [naive_run(items, period) for period in range(len(items))] if items else True


@given(sequences, st.integers(1, 50))
def test_loop_is_the_period_with_most_copies(items, loop_window):
    recent = items[-loop_window:]
    loops = [(-(1 + naive_run(recent, p) / p), p) for p in range(1, len(recent))]
    found = trailing_loop(items, loop_window)
    copies, period = min(loops, default=(0, 0))
    if copies > -3:
        assert found is None
    else:
        assert found == TrailingLoop(period, naive_run(recent, period))
        assert found.copies == -copies


@given(sequences)
def test_a_run_that_counts_rules_out_every_period_up_to_its_length(items):
    """The fact that the fast paths use, stated in `lz_penalty.loops`."""
    runs = trailing_runs(items)
    counted = [p for p in range(1, len(items)) if runs[p] >= 2 * p]
    best, allowed = None, 0
    for p in counted:
        if p > allowed:
            allowed = runs[p]
            if best is None or runs[p] * best > runs[best] * p:
                best = p
    found = trailing_loop(items)
    assert (found and found.period) == best


def fibonacci(n):
    a, b = [1], [0]
    while len(b) < n:
        a, b = b, b + a
    return b[:n]


def tied():
    """Periods 1 and 4 have three copies each: the smaller one counts."""
    return [2, *([1, 0, 0, 0] * 3)]


STRUCTURED = {
    "all equal": [5] * 200,
    "fibonacci": fibonacci(200),
    "fibonacci, cut": fibonacci(300)[:233],
    "loop at the end": [1, 2, 3, 4, 5, 6, *[7, 8, 9] * 30],
    "loop before the end": [7, 8, 9] * 30 + [1],
    "loop of loops": ([1] * 6 + [2]) * 12,
    "near loop": [0, 1, 2, 3] * 20 + [0, 1, 2] + [0, 1, 2, 3] * 3,
    "long period": list(range(60)) * 4,
    "tie": tied(),
    "same ends, other middles": [t for i in range(12) for t in (*[1] * 20, 100 + i)] + [1] * 20,
}


@pytest.mark.parametrize("backend", ALL, ids=str)
@pytest.mark.parametrize("name", STRUCTURED)
@pytest.mark.parametrize("loop_window", [7, 64, 4096])
def test_every_backend_finds_the_same_loop(backend, name, loop_window):
    tokens = STRUCTURED[name]
    config = LZPenaltyConfig.failsafe(strength=1.0, loop_window=loop_window)
    (got,) = backend.penalise([[0.0] * 200], [tokens], config)
    settings = {"min_match_length": None, "escalation": 1.0, "loop_window": loop_window}
    want = reference.adjustments(tokens, 200, **settings)
    assert {t: bits for t, bits in enumerate(got) if bits} == pytest.approx(want, rel=1e-5)
