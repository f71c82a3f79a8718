"""The functions of `lz-penalty detect`: what they read, and what they report."""

import ast
import base64
import contextlib
import io
import json
import lzma
import random
import re
import subprocess
import sys
import zlib
from collections import Counter

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lz_penalty import LZPenaltyError
from lz_penalty.detection import _parquet_headers as parquet_headers
from lz_penalty.detection import _parquet_rows as parquet_rows
from lz_penalty.detection._records import Record, decode, read
from lz_penalty.detection._substrings import paper20
from lz_penalty.detection._verdict import CRITERIA
from lz_penalty.detection.scan import Document, Limits, Problem, Reading, Scan, scan, scan_ray
from tests.support import quick_or_deep
from tests.support.documents import BROKEN, COMPRESS, FINE, LOOP, fill, lines, write_broken


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
        lines = list(read(str(file), reading, span=range(start, min(start + size, len(content)))))
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
            assert not found.capped
            assert data.decode("utf-8-sig") in (found.text, found.text + "\n", found.text + "\r\n")


@pytest.mark.parametrize(
    ("row", "field", "capped"),
    [
        ({"text": "a", "finish_reason": "length"}, "text", True),
        ({"text": "a", "finish_reason": "stop"}, "text", False),
        ({"text": "a", "stop_reason": "max_tokens"}, "text", True),
        ({"text": "a"}, "text", False),
        ({"text": "a", "finish_reason": 3}, "text", False),
        ({"choices": [{"message": {"content": "a"}, "finish_reason": "length"}]}, "choices.0.message.content", True),
        ({"choices": [{"text": "a", "finish_reason": "stop"}], "finish_reason": "length"}, "choices.0.text", False),
        ({"a": {"b": "x"}, "finish_reason": "length"}, "a.b", True),
    ],
)
def test_a_record_says_whether_its_text_was_cut_off(row, field, capped):
    record = Record("x", 1, json.dumps(row).encode())
    assert decode(record, Reading(field=field)).capped is capped
    assert decode(record, Reading(field=field, capped=True)).capped is True


def test_criteria_depend_on_the_end_of_the_text(tmp_path):
    chain = "".join(f"    elif n == {i}:\n        return {i * i}\n" for i in range(60))
    rows = [{"text": chain, "finish_reason": reason} for reason in ("length", "stop")]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = list(scan([str(tmp_path / "x.jsonl")], Scan()))
    assert [[one.criterion for one in document.verdicts] for document in found] == [["structure"], []]
    assert found[0].verdicts[0].skeleton == r"w # \n w = # : \n"
    (tmp_path / "x.txt").write_text(chain)
    (plain,) = scan([str(tmp_path / "x.txt")], Scan())
    (cut,) = scan([str(tmp_path / "x.txt")], Scan(reading=Reading(capped=True)))
    assert (plain.flagged, cut.flagged) == (False, True)


def test_paths_and_names_are_lists(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(lines(LOOP))
    (document,) = scan([tmp_path / "x.jsonl"], Scan())
    assert (document.source, document.flagged) == (str(tmp_path / "x.jsonl"), True)
    for one in (str(tmp_path / "x.jsonl"), tmp_path / "x.jsonl"):
        for start in (scan, scan_ray):
            with pytest.raises(LZPenaltyError, match=r"sources = .*: must be a list of paths, such as \['/.*\]\.$"):
                start(one, Scan())
    with pytest.raises(
        LZPenaltyError, match=r"criteria = 'tandem': must be a tuple of names, such as \('tandem',\)\.$"
    ):
        Scan(criteria="tandem")


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


# ---------------------------------------------------------------- small files that unpack to much

LONG = "No! " * 250_000  # a megabyte
SAME = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 400, pyarrow.int32()), pyarrow.array([LONG]))
WHOLE = {"dictionary_pagesize_limit": 2**30, "store_schema": False}
PLAIN = {"use_dictionary": False}


def one_list(values):
    return pyarrow.ListArray.from_arrays(pyarrow.array([0, len(values)], pyarrow.int32()), values)


# The column, the field, how it is written, and the number of documents that can be read; else the file is refused.
BOMBS = {
    "equal rows": (lambda: SAME, "text", WHOLE, 400),
    "equal rows with Arrow's own type": (lambda: SAME, "text", WHOLE | {"store_schema": True}, 400),
    "equal beginnings": (lambda: [LONG] * 400, "text", PLAIN | {"column_encoding": "DELTA_BYTE_ARRAY"}, 400),
    "one page": (lambda: ["x" * quick_or_deep(300_000_000, 400_000_000)], "text", PLAIN, None),
    "equal texts in a list": (lambda: one_list(SAME), "text.0", WHOLE, 1),
    "texts in a list": (lambda: [[LONG] * 400], "text.0", PLAIN, None),
    "nulls in a list": (lambda: one_list(pyarrow.nulls(20_000_000, pyarrow.string())), "text.0", PLAIN, None),
}


def of_fixed_width(name):
    """Values that take their whole width in memory, even nulls; and what is said of the file."""
    if name == "equal values in a list":
        values = pyarrow.array([b"x" * 1_000_000], pyarrow.binary(1_000_000))
        return one_list(
            pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * quick_or_deep(400, 1_000), pyarrow.int32()), values)
        ), "binary"
    if name == "nulls":
        return pyarrow.nulls(64, pyarrow.binary(5_000_000)), "fixed_size_binary"
    return pyarrow.nulls(64, pyarrow.list_(pyarrow.int64())), "lists of a fixed size"


@pytest.mark.skipif(sys.platform != "linux", reason="measures memory as Linux tells it")
@pytest.mark.parametrize("name", ["equal values in a list", "nulls", "a list that is said to have a fixed size"])
def test_values_of_a_fixed_width_are_not_decoded(tmp_path, name):
    file = tmp_path / "bomb.parquet"
    column, said = of_fixed_width(name)
    table = pyarrow.table({"text": column})
    with pyarrow.parquet.ParquetWriter(file, table.schema, compression="zstd", **WHOLE) as writer:
        writer.write_table(table)
        if name.startswith("a list"):
            forged = pyarrow.schema({"text": pyarrow.list_(pyarrow.int64(), 1_000_000)}).serialize().to_pybytes()
            writer.add_key_value_metadata({"ARROW:schema": base64.b64encode(forged).decode()})
    assert file.stat().st_size < 10_000
    found, problems, megabytes = peak(str(file), "text" if name == "nulls" else "text.0")
    assert (found, said in problems[0]) == (0, True)
    assert len(problems) == {"equal values in a list": 1, "nulls": 64}.get(name, 1)
    assert megabytes < 250


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("encoding", [None, "PLAIN", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
def test_lists_of_every_encoding_are_read(tmp_path, version, encoding):
    texts = [f"{n} {FINE[: n % 50]}" for n in range(2_000)]
    table = pyarrow.table({"chat": [[{"role": "user", "content": text}] * 2 for text in texts]})
    leaves = {f"chat.list.element.{name}": encoding for name in ("role", "content")}
    options = PLAIN | {"column_encoding": leaves} if encoding else {}
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet", data_page_version=version, **options)
    assert [one.data for one in read(str(tmp_path / "x.parquet"), Reading(field="chat.1.content"))] == texts


def test_a_large_row_group_of_lists_is_read(tmp_path):
    """What other columns take does not count, and the texts of a dictionary count with their own length."""
    texts = [f"{n} " + "x" * 1_000 for n in range(2_000)]
    table = pyarrow.table({"chat": [[{"role": text, "content": text}] for text in texts]})
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
    small = Reading(field="chat.0.content", max_record=32_000)  # 64 of them are as much as the texts
    assert [one.data for one in read(str(tmp_path / "x.parquet"), small)] == texts


def peak(source, field: str) -> tuple[int, list[str], int]:
    """How many documents of at most 1 MiB a process finds in a file, its problems, and the megabytes that it needed."""
    code = (
        "import sys\n"
        "from lz_penalty.detection._records import Problem, Reading, read\n"
        "found, problems = 0, []\n"
        "for record in read(sys.argv[1], Reading(field=sys.argv[2], max_record=2**20)):\n"
        "    found += not isinstance(record, Problem)\n"
        "    problems += [str(record)] if isinstance(record, Problem) else []\n"
        "(line,) = [line for line in open('/proc/self/status') if line.startswith('VmHWM:')]\n"
        "print([found, problems, int(line.split()[1]) // 1024])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, source, field], capture_output=True, text=True, check=True)
    return tuple(ast.literal_eval(done.stdout))


@pytest.mark.skipif(sys.platform != "linux", reason="measures memory as Linux tells it")
@pytest.mark.parametrize("name", BOMBS)
def test_a_small_parquet_file_cannot_take_much_memory(tmp_path, name):
    column, field, options, documents = BOMBS[name]
    file = tmp_path / "bomb.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": column()}), file, compression="zstd", **options)
    assert file.stat().st_size < 100_000
    found, problems, megabytes = peak(str(file), field)
    assert megabytes < 250
    if documents is None:
        assert (found, len(problems)) == (0, 1)
        assert re.search(
            r"column 'text' needs up to [\d,]+ bytes at once in row group 1, .*; raise --max-record", problems[0]
        )
    else:
        assert (found, problems) == (documents, [])


def test_a_small_xz_file_cannot_take_much_memory(tmp_path):
    """The header says how much of the text the decoder keeps in memory: here 1.5 GiB."""
    data = bytearray(lzma.compress(lines(FINE), filters=[{"id": lzma.FILTER_LZMA2, "preset": 0}]))
    assert data[14:16] == b"\x21\x01"  # LZMA2, and one byte of settings: the size of the dictionary
    data[16] = 37
    data[20:24] = zlib.crc32(data[12:20]).to_bytes(4, "little")
    (tmp_path / "bomb.jsonl.xz").write_bytes(data)
    (problem,) = read(str(tmp_path / "bomb.jsonl.xz"), Reading())
    assert isinstance(problem, Problem)
    assert "Memory usage limit exceeded" in problem.message


def test_xz_streams_may_follow_each_other(tmp_path):
    (tmp_path / "x.jsonl.xz").write_bytes(lzma.compress(lines(LOOP)) + bytes(8) + lzma.compress(lines(FINE, LOOP)))
    assert [bool(one.verdicts) for one in scan([str(tmp_path / "x.jsonl.xz")], Scan())] == [True, False, True]


@pytest.mark.parametrize("rows", [1, 3, 64, 65, 1_000])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_every_row_of_a_parquet_file_is_read_once(tmp_path, rows, version):
    texts = [None if n % 50 == 49 else f"text {n} " * (n % 40) for n in range(1_500)]
    table = pyarrow.table({"text": texts, "deep": [{"a": [{"b": text}] * 2} for text in texts]})
    file = tmp_path / "x.parquet"
    sizes = {"row_group_size": rows, "data_page_size": 500, "write_batch_size": 10}
    pyarrow.parquet.write_table(table, file, data_page_version=version, **sizes)
    for field in ("text", "deep.a.1.b", "deep.a.-1.b"):
        read_texts = [None if isinstance(one, Problem) else one.data for one in read(str(file), Reading(field=field))]
        assert read_texts == texts
    assert all(isinstance(one, Problem) for one in read(str(file), Reading(field="deep.a.2.b")))
    assert all(
        "struct" in one.message or "no field" in one.message for one in read(str(file), Reading(field="deep.a.0"))
    )


def test_a_parquet_file_with_any_bytes_changed_is_read_or_named(tmp_path):
    file = tmp_path / "x.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a", None, "ccc"] * 100}), file)
    whole, rng = file.read_bytes(), random.Random(0)
    for _ in range(1_000):
        changed = bytearray(whole)
        for _ in range(rng.randrange(1, 6)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        file.write_bytes(changed)
        list(read(str(file), Reading()))


def test_parquet_without_rows_or_packed(tmp_path):
    file = tmp_path / "x.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": pyarrow.array([], pyarrow.string())}), file)
    assert [str(one) for one in read(str(file), Reading())] == [f"{file}: contains no documents."]
    packed = tmp_path / "x.parquet.xz"
    packed.write_bytes(lzma.compress(file.read_bytes()))
    (problem,) = read(str(packed), Reading())
    assert "give the file itself" in problem.message


@given(st.binary(max_size=300))
def test_any_bytes_as_the_header_of_a_page(data):
    """A header is read, or it is refused with an error that the reader names."""
    with contextlib.suppress(ValueError):
        parquet_headers._header(io.BytesIO(data), 0)


@pytest.mark.parametrize("sizes", [[1], [5, 1, 7], [100, 1, 1, 1, 100], [3] * 50])
@pytest.mark.parametrize("rows", [1, 2, 3, 10, 64])
def test_the_most_that_some_rows_take(sizes, rows):
    """The result equals the maximum over all windows."""
    rng = random.Random(0)
    pages = [parquet_rows._Page(count, rng.randrange(1_000), 0) for count in sizes]
    of_row = [number for number, count in enumerate(sizes) for _ in range(count)]
    windows = [set(of_row[first : first + rows]) for first in range(len(of_row))]
    assert parquet_rows._worst(pages, rows) == max(sum(pages[n].decoded(rows) for n in window) for window in windows)
