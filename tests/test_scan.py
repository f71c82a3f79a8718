"""What `lz-penalty detect` reads and says of documents, function by function."""

from collections import Counter

import pytest
from documents import BROKEN, COMPRESS, FINE, LOOP, fill, lines, write_broken
from hypothesis import given
from hypothesis import strategies as st

from lz_penalty.detection.records import Problem, Reading, Record, Span, decode, read
from lz_penalty.detection.scan import Document, Scan, scan
from lz_penalty.detection.substrings import paper20
from lz_penalty.detection.verdict import CRITERIA, Limits


@pytest.fixture
def folder(tmp_path):
    return fill(tmp_path)


@pytest.mark.parametrize("end", COMPRESS)
def test_compressed(folder, end):
    (folder / f"x.jsonl{end}").write_bytes(COMPRESS[end](lines(LOOP, FINE)))
    (folder / f"x.txt{end}").write_bytes(COMPRESS[end](LOOP.encode()))
    results = scan([str(folder / f"x.jsonl{end}"), str(folder / f"x.txt{end}")], Scan())
    assert [one.flagged for one in results] == [True, False, True]


@pytest.mark.parametrize("name", BROKEN)
def test_what_cannot_be_read_is_named_and_the_rest_is_examined(folder, name):
    *_, message, loops = BROKEN[name]
    results = list(scan([write_broken(folder, name), str(folder / "some.jsonl")], Scan()))
    problems = [one for one in results if isinstance(one, Problem)]
    assert len(problems) == 1
    assert f"{folder}/{message}" in str(problems[0])
    documents = [one for one in results if isinstance(one, Document)]
    assert sum(one.flagged for one in documents) == loops + 2


@given(st.lists(st.sampled_from(["ab", "ba\ud800", "\U0001f40d", "xyz", "xy"]), max_size=120).map("".join))
def test_paper20_names_three_characters_that_occur_often_enough(text):
    found = CRITERIA["paper20"](text, Limits())
    assert (found is not None) == paper20(text)
    if found:
        counts = Counter(text[start : start + 3] for start in range(len(text) - 2))
        assert found.copies == counts[found.unit] >= 20
        places = [start for start in range(len(text) - 2) if text[start : start + 3] == found.unit]
        assert (found.start, found.start + found.length) == (places[0], places[-1] + 3)


parts = st.lists(
    st.sampled_from([b"\n", b"\r\n", b" \n", b'{"text": "a"}\n', b"{\n", b"x" * 30 + b"\n", b"z" * 90 + b"\n"])
)


@given(parts, st.sampled_from([b"", b"{}", b"y" * 70]), st.integers(1, 50))
def test_pieces_make_the_whole(tmp_path_factory, parts, tail, size):
    """Lines read span by span are the lines of the file, each once, with numbers that add up."""
    file = tmp_path_factory.mktemp("pieces") / "x.jsonl"
    content = b"".join(parts) + tail
    file.write_bytes(content)
    reading = Reading(max_record=40)
    whole = [one for one in read(str(file), reading) if one.line is not None]
    found, before = [], 0
    for start in range(0, len(content), size):
        lines = list(read(str(file), reading, span=Span(start, min(start + size, len(content)))))
        found += [
            type(one)(one.source, one.line + before, one.message if isinstance(one, Problem) else one.data)
            for one in lines
        ]
        before += lines[-1].line if lines else 0
    assert [one for one in found if isinstance(one, Problem) or not one.blank] == whole
    assert before == len(content.splitlines()) == content.count(b"\n") + bool(tail)


@given(st.binary(max_size=200))
def test_any_bytes_are_text_or_a_problem(data):
    for line in (None, 3):
        found = decode(Record("x", line, data), Reading())
        if not isinstance(found, Problem):
            assert line is None
            assert data.decode("utf-8-sig") in (found, found + "\n", found + "\r\n")


def test_a_byte_order_mark_is_no_text(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(b"\xef\xbb\xbf" + lines("ab"))
    (tmp_path / "x.txt").write_bytes(b"\xef\xbb\xbfab")
    results = list(scan([str(tmp_path / "x.jsonl"), str(tmp_path / "x.txt")], Scan()))
    assert [one.characters for one in results] == [2, 2]
    assert all(isinstance(one, Document) for one in results)


def test_the_bar_sees_every_byte(folder):
    seen = []
    for name in ("some.jsonl", "loop.txt"):
        list(scan([str(folder / name)], Scan(), tick=seen.append))
    assert sum(seen) == sum((folder / name).stat().st_size for name in ("some.jsonl", "loop.txt"))
