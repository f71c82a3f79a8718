"""Paired differences: known truths, corrections for many comparisons, and the words that they allow."""

import random

import numpy as np
import pytest
from scipy.stats import binomtest

from lz_penalty.detection import find_repetition
from lz_penalty.evaluation.study._offline.differences import bootstrap, compare, corrected, mcnemar, sign_flip
from lz_penalty.evaluation.study._offline.settings import STOP_LENGTH, cut
from lz_penalty.evaluation.study._offline.summaries import harm_mean, harm_share


@pytest.mark.parametrize(("more", "less"), [(0, 0), (3, 0), (8, 2), (93, 141), (400, 500)])
def test_mcnemar_is_the_exact_binomial_test(more, less):
    known = binomtest(more, more + less).pvalue if more + less else 1.0
    assert mcnemar(more, less) == pytest.approx(known)


def test_intervals_cover_the_truth():
    rng = np.random.default_rng(5)
    hits = 0
    for _ in range(60):
        low, high = bootstrap(list(rng.choice([-1.0, 0.0, 1.0], p=[0.2, 0.5, 0.3], size=120)))
        hits += low <= 0.1 <= high
    assert 53 <= hits <= 60  # 95 % of 60, with room for chance


def test_few_and_many_different_values_give_the_same_interval():
    rng = random.Random(1)
    few = [float(rng.randrange(3)) for _ in range(200)]
    many = [value + rng.random() * 1e-6 for value in few]
    assert bootstrap(few) == pytest.approx(bootstrap(many), abs=0.02)


def test_flipped_signs_agree_with_mcnemar():
    values = [1.0] * 14 + [-1.0] * 4 + [0.0] * 50
    assert sign_flip(values) == pytest.approx(mcnemar(14, 4), abs=0.01)


def test_a_large_difference_is_called_what_it_is():
    before = {n: float(n < 40) for n in range(100)}
    after = {n: float(n < 10) for n in range(100)}
    (one,) = corrected({"a": (before, after)}).values()
    assert (one.called, one.more, one.less, one.count) == ("lower", 0, 30, 100)
    assert one.high < 0
    (one,) = corrected({"a": (after, before)}).values()
    assert one.called == "higher"


def test_a_difference_that_is_real_alone_may_not_be_among_many():
    before = {n: float(n < 20) for n in range(87)}
    after = {n: float(n < 12) for n in range(87)}
    alone = corrected({0: (before, after)})[0]
    among = corrected({0: (before, after)} | dict.fromkeys(range(1, 40), (before, before)))
    assert alone.real
    assert not among[0].real
    assert among[0].called == "not established"
    assert among[0].p == pytest.approx(40 * alone.p)
    assert among[0].low < alone.low


def test_noise_is_not_called_real():
    rng = random.Random(3)
    values = [{n: float(rng.random() < 0.3) for n in range(120)} for _ in range(61)]
    found = corrected({n: (values[0], one) for n, one in enumerate(values[1:])})
    assert not any(one.real for one in found.values())
    assert compare(values[0], values[1]).low <= 0 <= compare(values[0], values[1]).high


def test_no_shared_question_gives_no_difference():
    assert compare({1: 1.0}, {2: 1.0}) is None


def test_corrections_stop_at_the_first_that_fails():
    """Holm: after a comparison that is not significant, none is called real."""
    strong = (dict.fromkeys(range(60), 0.0), {n: float(n < 30) for n in range(60)})
    weak = (dict.fromkeys(range(60), 0.0), {n: float(n < 5) for n in range(60)})
    found = corrected({"strong": strong, "weak": weak})
    assert found["strong"].real
    assert not found["weak"].real


def test_intervals_after_the_first_that_fails_have_its_level():
    """Holm does not go on to easier levels after a comparison that is not significant."""
    plain = dict.fromkeys(range(200), 0.0)
    given = {size: (plain, {n: float(n < size) for n in range(200)}) for size in (60, 4, 3, 2)}
    found = corrected(given)
    assert [one.real for one in found.values()] == [True, False, False, False]
    levels = {60: 4, 4: 3, 3: 3, 2: 3}  # 0.05 is divided by these numbers
    for size, (before, after) in given.items():
        alone = compare(before, after, 0.05 / levels[size])
        assert (found[size].low, found[size].high) == (alone.low, alone.high)


@pytest.mark.parametrize("copies", [3, 5, 8])
def test_a_text_ends_where_the_copies_are_complete(copies):
    """The first prefix that ends in so many copies, of 60 tokens or more together."""
    rng = random.Random(copies)
    for _ in range(4):
        unit = [rng.randrange(50) for _ in range(rng.randrange(1, 40))]
        tokens = [rng.randrange(1_000) for _ in range(rng.randrange(40))] + unit * rng.randrange(1, 14)
        tokens += [rng.randrange(1_000) for _ in range(30)]
        ends = (
            n
            for n in range(len(tokens) + 1)
            if find_repetition(tokens[:n], min_copies=copies, min_length=STOP_LENGTH, at_end=True)
        )
        first = next(ends, None)
        assert (cut(tokens, copies) or None) == (None if first is None else tokens[:first])


def texts(*lost, kind="prose"):
    return [{"kind": kind, "right": 100, "lost": one} for one in lost]


def test_harm_is_a_mean_over_models_and_kinds_with_an_interval_over_texts():
    one = [*texts(0, 2, 4), *texts(10, 10, kind="code")]
    two = [*texts(2, 4, 6), *texts(30, 30, kind="code")]
    found = harm_mean([one, two], ["prose", "code"])
    assert found.mean == pytest.approx((0.02 + 0.1 + 0.04 + 0.3) / 4)
    assert found.count == 5
    alone = harm_share(one, ["prose"])
    both = harm_mean([one, two], ["prose"])  # of equal texts, so that the interval is as wide as that of one model
    assert both.high - both.low == pytest.approx(alone.high - alone.low)
    assert both.low == pytest.approx(alone.low + 0.01)
    assert harm_mean([one, two], ["json"]) is None
    assert harm_mean([one, two], []) is None
