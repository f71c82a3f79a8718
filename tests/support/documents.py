"""Documents for the tests of `lz-penalty detect`: whole ones, compressed ones, broken ones."""

import bz2
import gzip
import json
import lzma
import random

import pyarrow
import pyarrow.parquet

LOOP = "No! " * 100
FINE = "A text that says one thing after another and then ends."


def zstd(data: bytes) -> bytes:
    return pyarrow.compress(data, codec="zstd", asbytes=True)


COMPRESS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstd}


def lines(*texts: str, field: str = "text") -> bytes:
    return b"".join(json.dumps({"id": number, field: text}).encode() + b"\n" for number, text in enumerate(texts))


def rows_of(file) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


NOISE = lines(LOOP, random.Random(0).randbytes(300_000).hex())  # hardly compressible: a cut takes from the second line


def fill(folder):
    """A few files of every kind."""
    (folder / "loop.txt").write_text(LOOP)
    (folder / "fine.md").write_text(FINE)
    (folder / "some.jsonl").write_bytes(lines(FINE, LOOP * 2, FINE, LOOP))
    table = pyarrow.table({"text": [LOOP, FINE, LOOP], "other": [1, 2, 3]})
    pyarrow.parquet.write_table(table, folder / "some.parquet", row_group_size=2)
    return folder


# File, content, how the problem is named, and how many loops are found in the rest of the file.
BROKEN = {
    "missing": ("gone.txt", None, "gone.txt: cannot be read: No such file or directory.", 0),
    "empty": ("empty.txt", b"", "empty.txt: is empty.", 0),
    "empty lines": ("empty.jsonl", b"", "empty.jsonl: contains no documents.", 0),
    "blank lines": ("blank.jsonl", b"\n \n", "blank.jsonl: contains no documents.", 0),
    "not UTF-8": ("latin.txt", b"one\ntwo\nthr\xe9\n", "latin.txt:3: not UTF-8 (byte 0xe9)", 0),
    "a line not UTF-8": (
        "bytes.jsonl",
        lines(LOOP) + b'{"text": "\xff"}\n' + lines(LOOP),
        "bytes.jsonl:2: not UTF-8",
        2,
    ),
    "a broken line": ("broken.jsonl", lines(LOOP) + b'\n{"text": \n' + lines(LOOP), "broken.jsonl:3: not JSON", 2),
    "nested too deeply": ("deep.jsonl", lines(LOOP) + b"[" * 10**6 + b"\n" + lines(LOOP), "deep.jsonl:2: not JSON", 2),
    "a long number": ("long.jsonl", b'{"text": ' + b"9" * 9_999 + b"}\n" + lines(LOOP), "long.jsonl:1: not JSON", 1),
    "no such field": ("other.jsonl", lines(LOOP, field="body"), "other.jsonl:1: there is no field 'text'", 0),
    "not text": (
        "number.jsonl",
        b'{"text": 7}\n' + lines(LOOP),
        "number.jsonl:1: field 'text' contains int, not text",
        1,
    ),
    "no object": (
        "list.jsonl",
        b"[1]\n" + lines(LOOP),
        "list.jsonl:1: there is no field 'text' (it is not an object)",
        1,
    ),
    "cut short": ("cut.jsonl.gz", gzip.compress(lines(LOOP))[:30], "cut.jsonl.gz: cannot be read", 0),
    "cut short later": ("late.jsonl.gz", gzip.compress(NOISE)[:-999], "late.jsonl.gz:2: cannot be read further", 1),
    "zstd cut short": ("cut.jsonl.zst", zstd(NOISE)[:-9], "cut.jsonl.zst:2: cannot be read further: Truncated", 1),
    "no gzip": ("no.txt.gz", b"plain", "no.txt.gz: cannot be read: Not a gzipped file", 0),
    "no zstd": ("no.txt.zst", b"plain", "no.txt.zst: cannot be read", 0),
    "no Parquet": ("no.parquet", b"PAR1 not really", "no.parquet: cannot be read", 0),
}


def write_broken(folder, name: str) -> str:
    file, content, *_ = BROKEN[name]
    if content is not None:
        (folder / file).write_bytes(content)
    return str(folder / file)
