"""The measures against their definitions, the fast LZSS code against the reference."""

import json
import math
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lz_penalty import LZPenaltyError, bundled_model, reference
from lz_penalty.detection import find_repetition, repetition_report
from lz_penalty.detection._metrics import distinct, lzss_code, seq_rep

motifs = st.lists(st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=9), st.integers(1, 8)), max_size=6)
sequences = motifs.map(lambda parts: [item for motif, copies in parts for item in motif * copies])
sizes = st.tuples(st.sampled_from([1, 2, 7, 40, 512]), st.sampled_from([1, 2, 5, 32]))


@given(sequences, sizes)
def test_the_fast_code_is_the_references(sequence, sizes):
    window, buffer = sizes
    fast = lzss_code(bytes(sequence), window_size=window, buffer_size=buffer)
    assert fast == reference.compress(sequence, window_size=window, buffer_size=buffer)
    text = "".join("xyß\U0001f40d"[item] for item in sequence)
    points = [ord(character) for character in text]
    assert lzss_code(text, window_size=window, buffer_size=buffer) == reference.compress(
        points, window_size=window, buffer_size=buffer
    )


@given(sequences)
def test_the_report_of_tokens(sequence):
    tokens = [1000 * item for item in sequence]
    report = repetition_report(tokens, vocab_size=5000)
    assert report.lzss_rate == reference.compression_rate(tokens, 5000)
    assert report.length == len(tokens)
    assert report.tandem == find_repetition(tokens)
    raw = b"".join(token.to_bytes(4, "little") for token in tokens)
    assert report.zlib_ratio == len(raw) / len(zlib.compress(raw))
    for n in (1, 2, 3, 4):
        grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
        assert report.distinct[n] == (len(set(grams)) / len(grams) if grams else 1.0)
        assert report.seq_rep[n] == 1 - report.distinct[n] == seq_rep(tokens, n)


def test_the_report_of_prose_and_of_a_loop():
    prose = bundled_model.passages()[0]
    report = repetition_report(prose)
    raw = prose.encode()
    assert report.lzss_rate == reference.compression_rate(raw, 256)
    assert report.zlib_ratio == len(raw) / len(zlib.compress(raw)) < 2.4
    assert report.distinct[4] == distinct(prose.split(), 4) > 0.9
    assert report.tandem is None
    loop = repetition_report(prose[:500] + "and so on and " * 200)
    assert loop.tandem.unit == "and so on and "
    assert loop.seq_rep[4] > 0.8
    assert loop.zlib_ratio > 5
    assert loop.lzss_rate < report.lzss_rate / 3


def test_without_a_vocabulary_it_is_the_largest_id():
    assert repetition_report([0, 1, 2, 3]).lzss_rate == math.log2(4) + 1
    assert repetition_report([0, 1, 2, 3], vocab_size=256).lzss_rate == 9
    with pytest.raises(LZPenaltyError, match="vocab_size = 3: must be an integer from 4"):
        repetition_report([0, 1, 2, 3], vocab_size=3)


@pytest.mark.parametrize("token", [-1, 2**31])
def test_what_is_no_token_id_is_refused(token):
    with pytest.raises(LZPenaltyError, match=f"token = {token}: must be an integer from 0"):
        repetition_report([1, token])


@pytest.mark.parametrize("kind", ["no \ud800" * 40, b"no \xff" * 40, [1, 2] * 60, np.ones(70, dtype=np.int32)])
def test_a_report_is_data(kind):
    data = json.loads(json.dumps(repetition_report(kind).to_dict()))
    assert set(data) >= {"length", "distinct_1", "seq_rep_4", "zlib_ratio", "lzss_rate", "tandem"}
    assert data["tandem"]["copies"] >= 40


@pytest.mark.parametrize("empty", ["", b"", []])
def test_nothing_in_nothing(empty):
    report = repetition_report(empty)
    assert report.to_dict() | {"zlib_ratio": 0} == {
        "length": 0,
        **{f"distinct_{n}": 1.0 for n in (1, 2, 3, 4)},
        **{f"seq_rep_{n}": 0.0 for n in (1, 2, 3, 4)},
        "zlib_ratio": 0,
        "lzss_rate": 0.0,
        "tandem": None,
    }


def test_a_hundred_kilobytes_are_no_matter():
    text = "".join(bundled_model.passages())[:100_000]
    assert 3 < repetition_report(text).lzss_rate < 9
