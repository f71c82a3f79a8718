"""The structure of a text against its definition, in streams and stored texts; blocks and 30-grams."""

import re
import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lz_penalty import LZPenaltyError
from lz_penalty.detection import (
    StructureDetector,
    find_block,
    find_endless,
    find_structure,
    repeated_gram,
    stop_on_repetition,
)
from lz_penalty.detection import _skeleton as skeleton
from lz_penalty.detection._structure import TAIL

ITEM = re.compile(r"([a-zA-Z_]+(?: [a-zA-Z_]+)*)|([0-9]+(?:\.[0-9]+)*)|([ \t]*[\n\r]\s*)|[ \t]+|((.)\5*)", re.DOTALL)
NAMES = {1: "words", 2: "number", 3: "line end"}


def items_of(text):
    """The kind and text of every item but the last, which may be incomplete; so may a number and the point after it."""
    found = [m for m in ITEM.finditer(text) if m.lastgroup or m.lastindex]
    items = [
        (NAMES.get(min(m.lastindex, 4), m.group()[0]), m.group() if m.lastindex < 3 else m.group()[0]) for m in found
    ]
    return items[: -2 if re.search(r"(?<!\.)[0-9]\.$", text) else -1]


def alike(new, old):
    prefix = next((i for i, (a, b) in enumerate(zip(new, old)) if a != b), min(len(new), len(old)))
    rest = min(len(new), len(old)) - prefix
    suffix = next((i for i in range(rest) if new[-1 - i] != old[-1 - i]), rest)
    letters = sum(character != " " for character in new)
    return letters * (prefix + suffix) // len(new) if 2 * (prefix + suffix) >= len(new) else 0


def last_with(items, i, size, key):
    """The last item that has the same `size` items before it, by this key."""
    for j in range(i - 1, size - 1, -1):
        if i >= size and [*map(key, items[j - size : j])] == [*map(key, items[i - size : i])]:
            return j
    return -1


def predictions(text):
    """Weight, predicted weight and source of every item, as the docstring of `_skeleton` says."""
    items, out, words = items_of(text), [], 0
    value = [int(re.sub(r"\D", "", one)) % skeleton.PRIME if kind == "number" else 0 for kind, one in items]
    for i, (kind, one) in enumerate(items):
        lag = i - 1 - out[-1][2] if i else len(items)
        near = last_with(items, i, 3, lambda item: "#" if item[0] == "number" else item)
        frame = last_with(items, i, 6, lambda item: item[0])
        weight = sum(character not in " ." for character in one) if kind in ("words", "number") else 0
        best, source, other_number = 0, -1, False
        for j in (i - lag, i - words if words else -1, i - 2 * lag, i - 3 * lag, near, frame):
            if j < 0 or items[j][0] != kind:
                continue
            predicted = weight
            if kind == "words":
                predicted = weight if one == items[j][1] else alike(one, items[j][1])
            elif kind == "number" and one != items[j][1]:
                before = out[j][2]
                steady = before >= 0 and items[before][0] == kind and value[i] - value[j] == value[j] - value[before]
                if not steady:
                    predicted, other_number = 0, True
            if source < 0 or predicted > best or (kind == "line end" and j > source):
                best, source = predicted, j
        words = i - source if kind == "words" and best else words
        out.append((0 if other_number and not best else weight, best, source))
    return out


words = st.sampled_from(["a", "if x", "return the old man", "return the new man", "x_y", "Z"])
pieces = st.one_of(
    words, st.integers(0, 30).map(str), st.sampled_from(["3.14", "(", ")", "==", "\n", "\n\n  ", " ", "'", ".", ","])
)
texts = st.lists(pieces, max_size=60).map("".join)
frames = st.tuples(texts, st.integers(1, 9)).map(lambda pair: pair[0] * pair[1])


def codes(text):
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")


@given(st.one_of(texts, frames))
def test_items_and_sources_are_those_of_the_definition(text):
    reader = skeleton.Reader(((10**6, 1.0),), 2)
    reader.read(codes(text))
    expected = predictions(text)
    count = int(reader.state[skeleton.COUNT])
    fields = (skeleton.WEIGHT, skeleton.PREDICTED, skeleton.SOURCE)
    assert [tuple(int(reader.items[field, i]) for field in fields) for i in range(count)] == expected


@given(frames, st.lists(st.integers(1, 20), min_size=1, max_size=20))
def test_a_stream_is_read_like_a_stored_text(text, sizes):
    rules = ((20, 0.8), (60, 0.7))
    stream, begins, at = StructureDetector(rules=rules), [], 0
    while at < len(text):
        size = sizes[at % len(sizes)]
        begins.append(stream.push(text[at : at + size]))
        at += size
    whole = find_structure(text, rules=rules)
    assert stream.current == whole
    assert stream.length == len(text)
    if whole:
        assert any(begins)


def test_windows_hold_the_last_letters():
    """The share of the window, counted from the definition, decides when a rule is met."""
    text = "".join(f"case {i}: return '{string.ascii_lowercase[i % 26] * 3}';\n" for i in range(60))
    for share in (0.5, 0.7, 0.75, 0.8, 0.9, 0.99):
        weight = predicted = 0
        for one, good, _ in reversed(predictions(text)):
            weight, predicted = weight + one, predicted + good
            if weight >= 200:
                break
        assert (find_structure(text, rules=((200, share),)) is not None) == (predicted >= share * weight)


SENTENCES = "The function returns the sum of all values. It takes a list, and it returns a number.\n"
LOOPS = {
    "counting": "".join(f"    elif n == {i}:\n        return {i * i}\n" for i in range(60)),
    "two numbers": "".join(f"assert add({i}, {i * 3 % 17}) == {i + i * 3 % 17}\n" for i in range(60)),
    "alternating": "".join(
        f"INSERT INTO t VALUES ({i}, '{'John' if i % 2 else 'Jane'}', '{'Rome' if i % 2 else 'Oslo'}');\n"
        for i in range(60)
    ),
    "numbers alone": "x = [" + ", ".join(map(str, range(400))),
    "identifiers": "".join(
        f"class {name}:\n    def __init__(self):\n        self.head = None\n        self.tail = None\n\n"
        for name in ["LinkedNode" + letter for letter in string.ascii_uppercase]
    ),
    "a growing list": "".join(f"names = [{', '.join(['the old name'] * (i + 1))}]\n" for i in range(30)),
    "interrupted": (SENTENCES * 9 + "Wait, that is wrong.\n") * 3 + SENTENCES * 6,
}


@pytest.mark.parametrize("text", LOOPS.values(), ids=LOOPS)
def test_structural_loops_are_found(text):
    found = find_structure("Some words before it begins.\n\n" + text)
    assert found is not None
    assert found.copies >= 2
    assert found.start <= 30 + len(text) // 2
    assert found.skeleton


def test_prose_and_code_are_not_structural():
    prose = " ".join(
        f"The {a} {b} went to the {c}, and the {c} saw the {a} again." for a, b, c in zip(WORDS, WORDS[7:], WORDS[13:])
    )
    assert find_structure(prose) is None


WORDS = (  # noqa: SIM905
    "river morning captain letter window garden silver question mountain harbour candle winter soldier kitchen "
    "village orchard merchant chapel journey blanket lantern stranger whistle meadow thunder pocket ribbon needle"
).split()


def test_long_texts_are_read_from_their_end_first():
    text = "".join(f"{word} and {other}, {i}. " for i, (word, other) in enumerate(zip(WORDS * 200, WORDS[3:] * 200)))
    assert len(text) > TAIL
    loop = text + LOOPS["counting"] * 3
    assert find_structure(loop).start >= len(text) - 40


def test_a_stream_of_text_can_be_stopped_at_a_frame():
    lines = [f"    elif n == {i}:\n" for i in range(500)]
    assert list(stop_on_repetition(lines)) == lines
    stream = stop_on_repetition(lines, structure=True)
    assert len(list(stream)) < 60
    assert stream.repetition.skeleton == r"w = # : \n"
    with pytest.raises(LZPenaltyError, match="structure"):
        list(stop_on_repetition([1, 2, 3], structure=True))


def test_rules_are_checked():
    for rules in ((), ((200,),), ((1, 0.9),), ((200, 1.5),), [(200, 0.9)]):
        with pytest.raises(LZPenaltyError, match="rules"):
            StructureDetector(rules=rules)
    with pytest.raises(LZPenaltyError, match="min_copies"):
        find_structure("x", min_copies=1)


@pytest.mark.parametrize("text", [5, None, b"x"])
def test_only_texts_are_read(text):
    with pytest.raises(LZPenaltyError, match=r"text = .*: must be a str"):
        StructureDetector().push(text)


# ---------------------------------------------------------------- blocks, short units, 30-grams


def block_by_definition(text, copies, after):
    for period in range(1, len(text)):
        start = len(text) - period
        while start and text[start - 1] == text[start - 1 + period]:
            start -= 1
        if len(text) - start >= copies * period and len(text) - start - period >= after:
            return start, period
    return None


units = st.text("ab", min_size=1, max_size=50)


@given(st.text("abc", max_size=30), units, st.integers(1, 6), st.integers(0, 40), st.sampled_from([1.5, 2, 3]))
def test_blocks_equal_their_definition(before, unit, copies, cut, least):
    text = before + (unit * (copies + 1))[: len(unit) * copies + cut]
    found = find_block(text, min_copies=least, min_after=32)
    assert (found and (found.start, found.period)) == block_by_definition(text, least, 32)


def test_a_short_unit_needs_many_copies():
    assert find_endless("Non! " * 25).unit == "Non! "
    assert find_endless("Non! " * 23) is None
    assert find_endless("Nonsense, I say! " * 8) is None
    assert find_endless("Title\n" + "=" * 250) is None
    assert find_endless("Title\n" + "=" * 300).unit == "="


def test_thirty_words_twenty_times():
    unit = " ".join(WORDS) + " "
    assert repeated_gram(unit * 19) is None
    found = repeated_gram(unit * 22)
    assert (found.count, found.start, len(found.gram.split())) == (21, 0, 30)
    assert repeated_gram("a b c a b d a b e", size=2, min_count=3).gram == "a b"
