"""The labelled set is what its generators write, and `tandem` flags none of the texts that it must not flag."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lz_penalty.detection import (
    find_counter,
    find_drift,
    find_edited,
    find_repetition,
    find_repetitions,
    is_endless,
)
from research.labelled import build
from tests.support import ROOT

motifs = st.lists(st.tuples(st.text("ab", min_size=1, max_size=4), st.integers(1, 8)), max_size=5)
STRICT = ("tables", "code", "arithmetic", "JSON")
LABELS = {"loop", "legitimate", "asked for", "borderline"}


@pytest.fixture(scope="module")
def documents():
    return build.read()


def test_the_set_is_what_its_generators_write(documents):
    assert documents == list(build.documents())


def test_every_document_says_what_it_is(documents):
    assert len(documents) >= 300
    assert len({document["id"] for document in documents}) == len(documents)
    for document in documents:
        assert document["label"] in LABELS
        assert document["provenance"]
        assert document["text"].strip() or document["kind"] == "tandem"
        assert (document["label"] == "loop") == (document["kind"] is not None)
        assert document["onset"] is None or 0 <= document["onset"] < len(document["text"])
    groups = {document["group"] for document in documents}
    assert {*STRICT, "model loops", "made loops", "prose", "verse", "logs", "asked for"} <= groups


@given(motifs.map(lambda parts: "".join(motif * copies for motif, copies in parts)))
def test_at_the_end_are_the_runs_that_nothing_follows(text):
    limits = {"min_copies": 3, "min_length": 4}
    everywhere = find_repetitions(text, **limits)
    at_end = find_repetitions(text, **limits, at_end=True)
    assert at_end == [run for run in everywhere if run.start + run.length == len(text)]
    assert find_repetition(text, **limits, at_end=True) == max(at_end, key=lambda run: run.length, default=None)


@pytest.mark.parametrize("kind", [str, str.encode, lambda text: [ord(character) for character in text]])
def test_the_limits_of_an_endless_loop(kind):
    least = 80 if isinstance(kind("a"), list) else 300
    short = 80 if least == 80 else 120  # with 20 copies or more
    assert is_endless(kind("x" + "ab" * (short // 2)))
    assert not is_endless(kind("x" + ("ab" * (short // 2))[1:]))
    assert not is_endless(kind("ab" * least + "]"))
    assert is_endless(kind("x" * 7 + "abcdefghijklmnopqrs" * 5 * (least // 75)))
    long = "".join(map(chr, range(1, least // 3)))
    assert not is_endless(kind(long * 4))
    assert is_endless(kind(long * 5))


def test_tandem_flags_no_table_code_arithmetic_or_json(documents, tokenizer):
    texts = {document["id"]: document["text"] for document in documents if document["group"] in STRICT}
    assert len(texts) > 200
    assert [name for name, text in texts.items() if is_endless(text)] == []
    assert [name for name, text in texts.items() if is_endless(tokenizer(text).input_ids)] == []


@pytest.mark.parametrize(
    ("kind", "find", "least"),
    [
        ("tandem", is_endless, 0.9),
        ("drift", find_drift, 0.8),
        ("counter", find_counter, 0.9),
        ("edited", find_edited, 0.7),
    ],
)
def test_each_criterion_finds_its_loops(documents, kind, find, least):
    loops = [document["text"] for document in documents if document["kind"] == kind]
    assert sum(bool(find(text)) for text in loops) >= least * len(loops) > 5


def test_the_published_counts_are_those_of_the_set(documents):
    published = json.loads((ROOT / "benchmarks" / "results" / "labelled.json").read_text())
    assert published["documents"] == len(documents)
    rows = [row for row in published["rates"] if (row["items"], row["criterion"]) == ("characters", "tandem")]
    for row in rows:
        own = [d for d in documents if (d["label"], d["group"], d["kind"]) == (row["label"], row["group"], row["kind"])]
        assert (row["texts"], row["flagged"]) == (len(own), sum(is_endless(document["text"]) for document in own))
    assert sum(row["texts"] for row in rows) == len(documents)
