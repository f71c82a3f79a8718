"""The LZSS compressor of Definition 8, and where the closed form equals its marginal codelength."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lz_penalty import reference
from lz_penalty.reference import Copy, Literal
from tests.support import cases

VOCAB = 40


def decode(code, window_size):
    """Return the tokens that `compress` has encoded."""
    out: list[int] = []
    for phrase in code:
        if isinstance(phrase, Literal):
            out.append(phrase.token)
        else:
            assert phrase.length <= phrase.distance <= min(len(out), window_size)
            start = len(out) - phrase.distance
            out += out[start : start + phrase.length]
    return out


@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 9))
def test_compress_can_be_undone(seed, window_size, buffer_size):
    sequence = cases.sequence(random.Random(seed), 80, 5)
    code = reference.compress(sequence, window_size=window_size, buffer_size=buffer_size)
    assert decode(code, window_size) == sequence
    assert all(phrase.length <= buffer_size for phrase in code if isinstance(phrase, Copy))


def test_rates_tell_loops_from_noise():
    rng = random.Random(0)
    noise = [rng.randrange(1000) for _ in range(400)]
    rates = [reference.compression_rate(tokens, 1000) for tokens in (noise, [1, 2, 3, 4] * 100, [1] * 400)]
    assert rates[0] > 9 > 1 > rates[1] > rates[2] > 0
    assert reference.compression_rate([], 1000) == 0.0


def test_buffer_code_is_definition_8():
    # newest first: 2 1 is found at distance 1, then 9 is a literal, then 3 alone at distance 3
    code = reference.compress_buffer([3, 9, 1, 2], window=[3, 7, 1, 2])
    assert code == [Copy(2, 1), Literal(9), Copy(1, 4)]
    assert reference.codelength(code, 16) == pytest.approx((1 + 0 + 1) + (4 + 1) + (0 + 2 + 1))


def closed_and_exact(context, window_size, buffer_size):
    closed = reference.marginal_codelengths(context, VOCAB, window_size=window_size, buffer_size=buffer_size)
    exact = reference.exact_marginal_codelengths(context, VOCAB, window_size=window_size, buffer_size=buffer_size)
    matches = reference.match_lengths(context, window_size=window_size, buffer_size=buffer_size)
    return closed, exact, matches


@pytest.mark.parametrize("seed", range(300))
def test_closed_form_equals_the_marginal_up_to_a_constant_while_l_is_at_most_1(seed):
    """For l = 0 everywhere; for l = 1 wherever a token does not follow another match than the nearest, or at e = 1."""
    rng = random.Random(seed)
    context = [rng.randrange(VOCAB) for _ in range(40)]
    buffer_size = 4
    closed, exact, matches = closed_and_exact(context, 30, buffer_size)
    longest = max(matches.values())
    if longest > 1:
        return
    followers = {e: context[len(context) - buffer_size - e] for e, m in matches.items() if e and m == longest == 1}
    nearest = min((e for e, m in matches.items() if m == 1), default=None)
    for token in range(VOCAB):
        elsewhere = any(follower == token and (e == 1 or e != nearest) for e, follower in followers.items())
        if not elsewhere:
            assert exact[token] - closed[token] == pytest.approx(1.0)


def test_closed_form_departs_where_the_distance_is_the_start():
    """l = 2: the closed form counts from the match's start, the compressor from its newest token."""
    context = [7, 1, 2, 3, 9, 8, 6, 5, 4, 0, 1, 2]
    closed, exact, matches = closed_and_exact(context, 10, 2)
    assert max(matches.values()) == 2
    e, d = 7, 9
    assert closed[3] == pytest.approx(math.log2(1 + (d - 3) / (2 * d)) - 1)
    assert exact[3] == pytest.approx(math.log2(3) + math.log2(e) - math.log2(2) - math.log2(e + 1))
    assert exact[3] - closed[3] == pytest.approx(
        1 + math.log2(3 * e / (2 * (e + 1))) - math.log2(1 + (d - 3) / (2 * d))
    )


def test_closed_form_departs_where_a_shorter_match_is_extended():
    """5 extends a match of one token while the longest has two: the compressor copies, the closed form does not."""
    context = [1, 2, 3, 9, 8, 2, 5, 7, 6, 0, 1, 2]
    closed, exact, matches = closed_and_exact(context, 10, 2)
    assert max(matches.values()) == 2
    assert closed[5] == pytest.approx(math.log2(4))
    together = reference.codelength([Copy(2, 4), Copy(1, 10)], VOCAB)
    assert exact[5] == pytest.approx(together - reference.codelength([Copy(2, 9)], VOCAB))
    assert exact[5] - closed[5] != pytest.approx(1.0, abs=0.1)
