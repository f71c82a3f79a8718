"""The paper's literal criterion against counting every substring."""

import sys
from collections import Counter
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lz_penalty import BackendUnavailableError, LZPenaltyError
from lz_penalty.detection import find_repetition, paper20, repeated_substrings

texts = st.lists(st.tuples(st.text("ab🐍", min_size=1, max_size=5), st.integers(1, 6)), max_size=6).map(
    lambda parts: "".join(unit * copies for unit, copies in parts)
)
lengths, counts = st.integers(1, 5), st.integers(2, 8)


def by_counting(text, min_length, min_count):
    """{substring: count} of all that reach both limits and of which no longer substring occurs as often."""
    every = Counter(text[i:j] for i in range(len(text)) for j in range(i + 1, len(text) + 1))
    maximal = {
        one: count
        for one, count in every.items()
        if not any(every[a + one] == count or every[one + a] == count for a in set(text))
    }
    return {one: count for one, count in maximal.items() if len(one) >= min_length and count >= min_count}


@given(texts, lengths, counts)
def test_equals_counting_every_substring(text, min_length, min_count):
    found = repeated_substrings(text, min_length, min_count, limit=100_000)
    assert {one.substring: one.count for one in found} == by_counting(text, min_length, min_count)
    assert all(text.find(one.substring) == one.start and one.length == len(one.substring) for one in found)
    order = [one.count * one.length for one in found]
    assert order == sorted(order, reverse=True)
    assert repeated_substrings(text, min_length, min_count, limit=2) == found[:2]


@given(texts, lengths, counts)
def test_the_cheap_form_says_the_same(text, min_length, min_count):
    assert paper20(text, min_length, min_count) == bool(repeated_substrings(text, min_length, min_count))


@given(texts)
def test_every_kind_of_sequence_gives_the_same(text):
    tokens = [ord(character) for character in text]
    wanted = [(one.start, one.count, one.length) for one in repeated_substrings(text, 2, 3)]
    for kind in (tokens, np.array(tokens, dtype=np.int64), np.array(tokens, dtype=np.uint32), [-t for t in tokens]):
        found = repeated_substrings(kind, 2, 3)
        assert sorted((one.start, one.count, one.length) for one in found) == sorted(wanted)
        assert all(one.substring == tuple(kind[one.start : one.start + one.length]) for one in found)
        assert paper20(kind, 2, 3) == paper20(text, 2, 3)


@pytest.mark.parametrize("item", [-97, 97])
def test_as_many_equal_items_as_their_number(item):
    assert [one.count for one in repeated_substrings([item] * 97, 96, 2)] == [2]


def test_what_is_found_late_is_found():
    text = "".join(map(chr, range(1000, 60_000)))
    assert not paper20(text)
    assert paper20(text + "abc" * 20)
    assert paper20("".join(piece + "abc" for piece in (text[i : i + 2900] for i in range(0, 58_000, 2900))))


def test_the_papers_numbers():
    assert paper20("abc." * 20)
    assert not paper20("abc." * 19 + "ab")
    assert not paper20("ab" + "c" * 21)
    assert paper20("ab" + "c" * 22)  # occurrences may overlap
    assert repeated_substrings("ab" + "c" * 22)[0].count >= 20


def test_ordinary_prose_is_flagged_by_it_and_not_by_tandem():
    words = ["river", "mountain", "harbour", "lantern", "window", "garden", "bridge", "candle", "market", "orchard"]
    text = ". ".join(f"Near the {a} stood the {b}" for a in words for b in words if a != b)
    assert repeated_substrings(text)[0].count >= 20
    assert find_repetition(text) is None


@pytest.mark.parametrize("text", ["", "a", "aa"])
def test_nothing_in_little(text):
    assert repeated_substrings(text) == []
    assert not paper20(text)


@pytest.mark.parametrize("limits", [{"min_length": 0}, {"min_count": 1}, {"min_count": 2.5}, {"limit": 0}])
def test_bad_limits_are_named(limits):
    with pytest.raises(LZPenaltyError, match=f"{next(iter(limits))} = "):
        repeated_substrings("text", **limits)


def test_says_what_to_install():
    with (
        mock.patch.dict(sys.modules, {"pydivsufsort": None}),
        pytest.raises(BackendUnavailableError, match=r"pip install 'lz-penalty\[detect\]'"),
    ):
        repeated_substrings("text " * 30)
