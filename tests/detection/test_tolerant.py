"""Drift, counters and edits against their definitions, and on the texts they are meant for."""

import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lz_penalty import LZPenaltyError
from lz_penalty.detection._drift import find_drift
from lz_penalty.detection._numerals import NUMBER, numerals, template
from lz_penalty.detection._tandem import find_repetitions
from lz_penalty.detection._tolerant import find_counter, find_edited

# ---------------------------------------------------------------- drift

motifs = st.lists(st.tuples(st.text("abc", min_size=1, max_size=4), st.integers(1, 7)), max_size=8)
drifting = motifs.map(lambda parts: "".join(motif * copies for motif, copies in parts))
shares = st.sampled_from([0.3, 0.5, 0.6, 0.7, 0.75, 0.9, 1.0])


def rotations(unit):
    return {unit[i:] + unit[:i] for i in range(len(unit))}


def drift_by_definition(text, copies, run, units, share, length, at_end):
    """Try every begin and end. The runs come from the exact search, which has its own tests."""
    runs = [(r.start, r.start + r.length, r.unit) for r in find_repetitions(text, min_copies=copies, min_length=run)]
    filled = [any(start <= i < end for start, end, _ in runs) for i in range(len(text))]
    found = []
    for begin in {start for start, _, _ in runs}:
        for end in {len(text)} if at_end else {end for _, end, _ in runs}:
            size = end - begin
            # In hundredths: 0.7 is meant, not the float next to it.
            if size > 0 and 100 * sum(filled[begin:end]) >= round(100 * share) * size:
                found.append((-size, begin, end))
    if not found:
        return None
    size, begin, end = min(found)
    if -size < length:
        return None
    outer = [r for r in runs if not any(o != r and o[0] <= r[0] and r[1] <= o[1] for o in runs)]
    inside = [unit for start, last, unit in outer if begin <= start and last <= end]
    different = []
    for unit in inside:
        if not any(unit in rotations(other) for other in different):
            different.append(unit)
    return (begin, end, len(different)) if len(different) >= units else None


@given(drifting, st.sampled_from([2, 2.5, 3]), st.integers(1, 8), st.integers(1, 3), shares, st.booleans())
def test_drift_equals_its_definition(text, copies, run, units, share, at_end):
    expected = drift_by_definition(text, copies, run, units, share, 4, at_end)
    found = find_drift(
        text, min_copies=copies, min_run=run, min_units=units, min_share=share, min_length=4, at_end=at_end
    )
    assert (found and (found.start, found.end, found.units)) == expected
    if found:
        assert found.share >= share - 1e-9
        assert found.coverage == (found.end - found.start) / len(text)


def test_the_definition_of_drift_is_met_with_something():
    assert drift_by_definition("abababcdcdcdx", 3, 6, 2, 0.9, 4, False) == (0, 12, 2)
    assert drift_by_definition("abababcdcdcdx", 3, 6, 2, 0.9, 4, True) == (0, 13, 2)
    assert drift_by_definition("abababababab", 3, 6, 2, 0.9, 4, False) is None


@given(drifting)
def test_drift_is_the_same_in_every_kind_of_sequence(text):
    limits = {"min_run": 4, "min_units": 2, "min_length": 8}
    expected = find_drift(text, **limits)
    for kind in (text.encode(), [ord(c) for c in text], np.array([ord(c) for c in text], dtype=np.int32)):
        found = find_drift(kind, **limits)
        assert (found is None) == (expected is None)
        if found:
            assert (found.start, found.end, found.share, found.units) == (
                expected.start, expected.end, expected.share, expected.units,
            )  # fmt: skip


def test_the_papers_kind_of_drift():
    """A frequency penalty: a word some 17 times, a sibling as often, fillers in between; no run is a loop."""
    words = ["Wait!", "Stop!", "Second!", "second!", "Okay!", "They!"]
    text = "So it went on. " + "\nhm!\n".join(" ".join([word] * (17 + i % 3)) for i, word in enumerate(words))
    found = find_drift(text)
    assert found.units == 6
    assert sum(run.length for run in found.runs) > 0.9 * (found.end - found.start)
    assert found.end == len(text)
    assert found.start < 20
    assert find_drift("Wait! " * 200) is None
    assert find_drift("One two three. " + "Wait! " * 20 + "Stop! " * 20) is None  # two are no drift by default


# ---------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("Step 17 of 1,200", [17, 1200]),
        ("the Twenty-first, the twelfth, NINETY-nine and zero", [21, 12, 99, 0]),
        ("007 bonds, 1,23 and 12,345,678", [7, 1, 23, 12_345_678]),
        ("someone, tenth-rate, often", [10]),
        ("1" * 18 + " " + "1" * 19, [int("1" * 18)]),
        ("v2 x3y 3.14 ٣ \u017fix", [2, 3, 3, 14]),
        ("", []),
    ],
)
def test_numbers_in_text(text, values):
    assert [number.value for number in numerals(text)] == values


@given(st.lists(st.sampled_from(["a", " ", "12", "seven", "twenty-two", "é", "\U0001f40d", ","]), max_size=12))
def test_a_template_keeps_all_but_the_numbers(parts):
    text = "".join(parts)
    shape = template(text)
    back = ""
    for i, item in enumerate(shape.items):
        back += text[shape.position(i) : shape.position(i + 1)] if item == NUMBER else chr(item)
    assert back == text
    assert shape.position(len(shape.items)) == len(text)
    assert [shape.items[place] for place in shape.places] == [NUMBER] * len(shape.values)


# ---------------------------------------------------------------- counter

counting = st.lists(
    st.tuples(
        st.sampled_from(["{0}. ", "a {0} b {1}; ", "x{0}={2}\n", "{0}", "n {3}, ", "a"]),
        st.integers(0, 30),
        st.sampled_from([-1, 0, 1, 2]),
        st.integers(1, 7),
    ),
    max_size=4,
).map(
    lambda parts: "".join(
        line.format(first + i * step, first + 7, first + 3 * i * step, i * i)
        for line, first, step, copies in parts
        for i in range(copies)
    )
)


def smallest_period(items):
    return next(p for p in range(1, len(items) + 1) if all(items[i] == items[i - p] for i in range(p, len(items))))


def counter_by_definition(text, copies, length, at_end):
    shape = template(text)
    items, n = shape.items.tolist(), len(shape.items)
    values = dict(zip(shape.places.tolist(), shape.values.tolist()))

    def holds(begin, end, p):
        if any(items[i] != items[i - p] for i in range(begin + p, end)):
            return False
        numbers = [i for i in range(begin + 2 * p, end) if items[i] == NUMBER and i != n - 1]
        return all(values[i] - values[i - p] == values[i - p] - values[i - 2 * p] for i in numbers)

    found = []
    for begin in range(n):
        for end in range(begin + 3, n + 1):
            p = smallest_period(items[begin:end])
            if (end - begin) / p < copies or not holds(begin, end, p):
                continue
            if (begin and holds(begin - 1, end, p)) or (end < n and holds(begin, end + 1, p)):
                continue
            if not any(items[i] == NUMBER and i != n - 1 and values[i] != values[i - p] for i in range(begin + p, end)):
                continue
            start, stop = shape.position(begin), shape.position(end)
            if stop - start >= length and (not at_end or end == n):
                found.append((start - stop, start, (end - begin) / p))
    if not found:
        return None
    size, start, times = min(found)
    return start, start - size, times


@given(counting, st.sampled_from([3, 3.5, 4]), st.sampled_from([1, 12]), st.booleans())
def test_counter_equals_its_definition(text, copies, length, at_end):
    text = text[:90]
    expected = counter_by_definition(text, copies, length, at_end)
    found = find_counter(text, min_copies=copies, min_length=length, at_end=at_end)
    assert (found and (found.start, found.end, found.copies)) == expected


def test_the_definition_of_counters_is_met_with_something():
    assert counter_by_definition("a 1. a 2. a 3. a 3.", 3, 1, False) == (0, 17, 3.4)
    assert counter_by_definition("a 1. a 2. a 3. a 3.", 3, 1, True) is None
    assert counter_by_definition("a 1. a 1. a 1. ", 3, 1, False) is None
    assert counter_by_definition("a 1. a 2. a 4. ", 3, 1, False) is None


def test_counters_in_words_and_downwards():
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
    found = find_counter("".join(f"Attempt {word} has failed, so let us try again. " for word in words))
    assert (found.copies, found.steps) == (12, (1,))
    verse = "{} bottles on the wall, and {} if one should fall.\n"
    assert find_counter("".join(verse.format(i, i - 1) for i in range(30, 3, -1))).steps == (-1, -1, 0)  # "one" stays


def test_a_list_that_says_something_is_no_counter():
    fruit = ["apple", "pear", "plum", "fig", "lime", "kiwi", "date", "nut", "leek", "bean", "corn", "rice"]
    assert find_counter("".join(f"{i}. Buy a kilogramme of {name}.\n" for i, name in enumerate(fruit))) is None
    rng = np.random.default_rng(0)
    assert find_counter("".join(f"row {i}: {rng.integers(1000)}\n" for i in range(99))) is None


def test_the_last_number_may_be_cut_short():
    text = "".join(f"Case {i} gives nothing new, next. " for i in range(88, 113))
    assert find_counter(text + "Case 1").end == len(text) + len("Case 1")
    assert find_counter(text + "Case 1 was odd.") is None
    assert find_counter(text + "Case 1 was odd.", at_end=False).copies >= 25


def test_counters_in_token_ids():
    pieces = ["So ", *(part for i in range(40) for part in ("Step ", str(i // 10), str(i % 10), ":", " go", " on.\n"))]
    vocabulary = sorted(set(pieces))
    ids = [vocabulary.index(piece) for piece in pieces]
    found = find_counter(ids, decode=vocabulary.__getitem__)
    assert (found.start, found.end, found.copies) == (1, len(ids), 40)
    with pytest.raises(LZPenaltyError, match="decode = None: token ids need a function"):
        find_counter(ids)


# ---------------------------------------------------------------- edited

sentences = st.lists(
    st.tuples(st.lists(st.sampled_from("abcd"), min_size=1, max_size=5), st.integers(1, 5), st.integers(0, 9)),
    max_size=5,
).map(
    lambda parts: [
        "e" if edit and i % (edit + 1) == edit else word
        for words, copies, edit in parts
        for i, word in enumerate(words * copies)
    ]
)


def edited_by_definition(words, copies, share, longest):
    n = len(words)
    found = []
    for p in range(1, longest + 1):

        def same(i, p=p):
            return words[i] == words[i - p] or i == n - 1

        def holds(begin, end, p=p, same=same):
            windows = range(begin + p, end - p + 1)
            return len(windows) > 0 and all(sum(not same(i) for i in range(w, w + p)) <= share * p for w in windows)

        for begin in range(n):
            for end in range(begin + 2 * p, n + 1):
                if (end - begin) / p < copies or not holds(begin, end):
                    continue
                if not (same(begin + p) and same(end - 1)) or all(same(i) for i in range(begin + p, end)):
                    continue
                further = [(b, e) for b in range(begin + 1) for e in range(end, n + 1) if (b, e) != (begin, end)]
                if any(holds(b, e) and same(b + p) and same(e - 1) for b, e in further):
                    continue
                found.append((begin - end, begin, p))
    return min(found, default=None)


@given(sentences, st.sampled_from([2, 3, 3.5]), st.sampled_from([0.2, 0.25, 0.5]))
def test_edited_equals_its_definition(words, copies, share):
    words = words[:22]
    expected = edited_by_definition(words, copies, share, 6)
    found = find_edited(" ".join(words), min_copies=copies, max_edits=share, max_period=6, min_length=1, at_end=False)
    assert (found is None) == (expected is None)
    if found:
        size, begin, period = expected
        assert (found.start, found.end) == (2 * begin, 2 * (begin - size) - 1)  # one letter and one space a word
        assert found.copies == -size / period


def test_the_definition_of_edits_is_met_with_something():
    assert edited_by_definition([*"abcdabedabcdx"], 3, 0.25, 6) == (-13, 0, 4)  # x may be cut short
    assert edited_by_definition([*"abcdabcdabcd"], 3, 0.25, 6) is None


def test_an_edited_loop_must_reach_the_end_as_its_copies_do():
    line = "{} looked at the door and said that it was time to go home. "
    text = "".join(line.format(name) for name in ["Anna", "Peter", "Maria", "Hans"] * 5)
    found = find_edited(text)
    # It begins where the first two copies agree: after the first name, which differs from the second.
    assert (found.copies, found.start, found.end, found.edits) == (20 - 1 / 14, len("Anna "), len(text), 18)
    assert found.unit.startswith("looked at the door")
    assert find_edited(text + "]}") is None
    assert find_edited(text + "]}", at_end=False).copies == found.copies
    assert find_edited(text.rstrip()[:-1]).copies == found.copies
    assert find_edited(line.format("Anna") * 20) is None  # exact copies are a tandem repeat


def test_edited_in_token_ids():
    words = [w for name in ["Anna", "Peter"] * 8 for w in (name, *[*"abcdefgh"])]
    vocabulary = sorted(set(words))
    ids = [vocabulary.index(word) for word in words]
    found = find_edited(ids, decode=lambda token: " " + vocabulary[token])
    assert (found.start, found.end, found.copies) == (1, len(ids), 16 - 1 / 9)


# ---------------------------------------------------------------- all three


@given(st.text(st.sampled_from("a ,.-\n1٣\u017fsixSIX_é\ud800\U0001f40d"), max_size=80))
def test_no_text_is_refused(text):
    for find in (find_drift, find_counter, find_edited):
        found = find(text, min_copies=3, min_length=1)
        assert found is None or 0 <= found.start < found.end <= len(text)


@pytest.mark.parametrize("find", [find_drift, find_counter, find_edited])
@pytest.mark.parametrize("empty", ["", b"", "a", "7"])
def test_nothing_in_nothing(find, empty):
    assert find(empty) is None


@pytest.mark.parametrize(
    ("find", "settings", "message"),
    [
        (find_drift, {"min_share": 0}, "min_share = 0: must be a finite number from 0.01 to 1"),
        (find_drift, {"min_units": 1.5}, "min_units = 1.5"),
        (find_drift, {"min_copies": 1}, "min_copies = 1"),
        (find_drift, {"at_end": 1}, "at_end = 1: must be true or false"),
        (find_counter, {"min_copies": 2}, "min_copies = 2: must be a finite number from 3"),
        (find_counter, {"min_length": 0}, "min_length = 0"),
        (find_edited, {"max_period": 10_000}, "max_period = 10000: must be an integer from 1 to 1024"),
        (find_edited, {"max_edits": 0.9}, "max_edits = 0.9"),
        (find_edited, {"at_end": "yes"}, "at_end = 'yes'"),
    ],
)
def test_bad_settings_are_named(find, settings, message):
    with pytest.raises(LZPenaltyError, match=re.escape(message)):
        find("some text", **settings)


def test_results_are_plain_data():
    drift = find_drift("Look! " * 20 + "This! " * 20 + "Third! " * 20 + "We! " * 20)
    counter = find_counter("".join(f"Step {i}: once more. " for i in range(40)))
    edited = find_edited("".join(f"{n} said that it was time to go home. " for n in ["Al", "Bo"] * 8))
    for found in (drift, counter, edited):
        assert json.loads(json.dumps(found.to_dict()))["end"] == found.end
        assert hash(found) == hash(found)
