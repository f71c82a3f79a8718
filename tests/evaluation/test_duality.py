"""Prediction is compression: codes that can be undone, as short as the paper says, by models and by LZSS."""

import contextlib
import functools
import json
import math
import random
import subprocess
import sys

import numpy as np
import pytest

from lz_penalty import LZPenaltyConfig, LZPenaltyError, bundled_model, reference
from lz_penalty.evaluation.duality import COMMON, compress_text, decompress_text, duality
from lz_penalty.evaluation.entropy_coding import decode, encode
from lz_penalty.evaluation.loading import Loaded
from lz_penalty.evaluation.penalties import penalty
from lz_penalty.evaluation.predictors import LZSSPredictor, ModelPredictor, closed_form, exact_marginal
from tests.support import quick_or_deep
from tests.support.commands import run
from tests.support.settings import ungated

END = 0


@pytest.fixture(scope="module")
def loaded(model, tokenizer):
    return Loaded(model, tokenizer)


class RandomPredictor:
    """Distributions from flat to extreme that depend on all tokens before."""

    def __init__(self, size, seed):
        self.size, self.seed, self.seen = size, seed, []

    def probabilities(self):
        rng = np.random.default_rng([self.seed, len(self.seen), sum(self.seen)])
        return (rng.random(self.size) ** rng.integers(1, 30) + 1e-12).astype(np.float32)

    def push(self, token):
        self.seen.append(token)


def drawn(size, seed):
    """A sequence that its predictor might say, with its end."""
    rng = random.Random(seed)
    predictor = RandomPredictor(size, seed)
    for _ in range(rng.choice([0, 1, 2, 5, 30, 200])):
        weights = predictor.probabilities()[1:].astype(float)
        predictor.push(rng.choices(range(1, size), weights)[0])
    return [*predictor.seen, END]


@pytest.mark.parametrize("size", [2, 5, 100, 4096])
def test_codes_can_be_undone_and_keep_the_bound(size):
    for seed in range(quick_or_deep(8, 40)):
        tokens = drawn(size, seed)
        code = encode(tokens, RandomPredictor(size, seed))
        assert len(code.data) == math.ceil(code.bits / 8)
        undone = functools.partial(decode, ends=lambda token: token == END, limit=1_000)
        assert undone(code.data, RandomPredictor(size, seed)) == tokens
        assert 0 < code.bits - code.quantised <= 2 + 1e-3 * len(tokens)  # the last term: rounding in the range coder
        # whatever follows the code: nothing else begins with it
        last = code.data[:-1] + bytes([code.data[-1] | (1 << -code.bits % 8) - 1]) if code.data else b""
        assert undone(last + b"\xff" * 9, RandomPredictor(size, seed)) == tokens


def test_codes_are_near_the_entropy_and_not_below():
    lengths = [(encode(drawn(100, seed), RandomPredictor(100, seed))) for seed in range(40)]
    assert sum(code.bits - code.quantised for code in lengths) / 40 < 1.6


def test_a_code_of_something_else_is_refused():
    with pytest.raises(LZPenaltyError, match="no end within 50 tokens"):
        decode(b"\x55" * 400, RandomPredictor(4096, 1), lambda token: token == END, 50)


def test_a_broken_code_gives_another_text_or_an_error():
    tokens = drawn(100, 5)
    code = encode(tokens, RandomPredictor(100, 5))
    for place in range(0, len(code.data), 7):
        broken = bytearray(code.data)
        broken[place] ^= 0x10
        with contextlib.suppress(LZPenaltyError):
            assert decode(bytes(broken), RandomPredictor(100, 5), lambda token: token == END, 300) != tokens


def test_a_token_without_probability_is_refused():
    class Sure(RandomPredictor):
        def probabilities(self):
            return np.array([0, 1], dtype=np.float32)

    with pytest.raises(LZPenaltyError, match="token 0 has no probability"):
        encode([1, 1, 0], Sure(2, 0))


@pytest.mark.parametrize("seed", range(60))
def test_the_fast_marginal_is_the_reference(seed):
    rng = random.Random(seed)
    window, buffer = rng.choice([(12, 5), (4, 2), (30, 1), (7, 7)])
    context = [rng.randrange(4) for _ in range(rng.randrange(40))]
    exact = reference.exact_marginal_codelengths(context, 7, window_size=window, buffer_size=buffer)
    assert exact_marginal(context, 7, window, buffer).tolist() == pytest.approx(exact)


def test_lzss_predicts_by_its_codelengths():
    context = [1, 2, 3, 9, 1, 2, 8, 6, 6, 1, 2]
    config = LZPenaltyConfig(window_size=16, buffer_size=2)
    predictor = LZSSPredictor(closed_form(config), 1000)
    for token in context:
        predictor.push(token)
    dense = reference.marginal_codelengths(context, 1000, window_size=16, buffer_size=2)
    weights = [2**-bits for bits in dense]
    assert predictor.probabilities().tolist() == pytest.approx([one / sum(weights) for one in weights], rel=1e-5)


def test_lzss_predicts_a_loop_and_no_noise():
    rng = random.Random(0)
    loop, noise = [1, 2, 3, 4, 5] * 60, [rng.randrange(1, 1000) for _ in range(300)]
    for codelengths in (exact_marginal, closed_form(LZPenaltyConfig())):
        bits = [encode([*text, END], LZSSPredictor(codelengths, 1000)).bits / 300 for text in (loop, noise)]
        assert bits[0] < 0.5 * bits[1]
        assert bits[1] > math.log2(1000) - 0.5


@pytest.mark.parametrize("name", ["none", ungated()])
def test_text_through_the_model_and_back(loaded, name):
    text = bundled_model.passages()[3][: quick_or_deep(160, 500)] + " — naïve 日本語 \x00\n\n"
    make = functools.partial(ModelPredictor, loaded, penalty(name))
    code = compress_text(text, loaded, make())
    assert decompress_text(code.data, loaded, make()) == text
    assert code.bits <= code.cross_entropy + 2  # the paper's bound
    assert len(code.data) < 0.6 * min(len(compress(text.encode())) for compress in COMMON.values())


def test_the_model_forgets_what_it_cannot_hold(loaded):
    """At its limit it goes on with the newer half, on both sides."""
    ids = loaded.tokenizer(bundled_model.passages()[0]).input_ids[: quick_or_deep(50, 100)]

    def make():
        predictor = ModelPredictor(loaded)
        predictor._longest = 32
        return predictor

    tokens = [*ids, loaded.tokenizer.eos_token_id]
    predictor = make()
    code = encode(tokens, predictor)
    assert 16 <= predictor._held <= 32
    assert decode(code.data, make(), lambda token: token == tokens[-1], 200) == tokens


def test_the_predictor_is_the_model(loaded):
    import torch

    ids = loaded.tokenizer(bundled_model.passages()[1]).input_ids[:40]
    predictor = ModelPredictor(loaded)
    with torch.no_grad():
        whole = loaded.model(torch.tensor([[loaded.tokenizer.eos_token_id, *ids]])).logits[0].softmax(-1)
    for place, token in enumerate(ids):
        assert np.allclose(predictor.probabilities(), whole[place].numpy(), atol=1e-5)
        predictor.push(token)


def test_a_text_with_special_tokens_is_text(loaded):
    text = "He wrote <|endoftext|> and <think> on the wall."
    make = functools.partial(LZSSPredictor, exact_marginal, len(loaded.tokenizer))
    assert decompress_text(compress_text(text, loaded, make()).data, loaded, make()) == text


def test_rows_add_up(loaded):
    texts = [text[:200] for text in bundled_model.passages()[:2]]
    make = functools.partial(LZSSPredictor, exact_marginal, len(loaded.tokenizer))
    rows = {row.name: row for row in duality(loaded, texts, {"LZSS": make})}
    row = rows.pop("LZSS")
    codes = [compress_text(text, loaded, make()) for text in texts]
    assert row.bits == sum(code.bits for code in codes)
    assert row.cross_entropy == sum(code.cross_entropy for code in codes)
    assert row.decoded
    assert row.codelengths < row.cross_entropy  # normalising costs bits: they were no complete code
    assert {one.tokens for one in rows.values()} == {row.tokens}
    assert row.bytes == len("".join(texts).encode())
    gzip = rows["gzip -9 (deflate)"]
    assert gzip.bits == 8 * sum(len(COMMON["gzip -9 (deflate)"](text.encode())) for text in texts)


def test_the_command(tmp_path):
    out = tmp_path / "duality.json"
    done = run("duality", "--passages", 1, "--characters", 60, "-p", "paper", "--json", "--out", out)
    assert (done.returncode, done.stderr) == (0, "")
    rows = json.loads(done.stdout)
    assert rows == json.loads(out.read_text())["results"]
    assert [row["decoded"] for row in rows].count(True) == 5
    assert rows[0]["bits"] < rows[-1]["bits"]


def test_without_the_library_it_says_what_to_install():
    hidden = "import sys; sys.modules['constriction'] = None; sys.argv = ['lz-penalty', 'duality']"
    code = hidden + "; from lz_penalty.cli import main; main()"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert shown.returncode == 2
    assert shown.stderr.strip() == "lz-penalty: this needs constriction: pip install 'lz-penalty[duality]'"
