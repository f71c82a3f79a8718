"""The page's numbers equal the reference's: golden vectors, generated cases, whole texts, and the tokenizer's ids."""

import json
import random
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lz_penalty import LZPenaltyConfig, bundled_model, reference
from lz_penalty.explain import explain, explain_sequence
from lz_penalty.explain._page import page as explorer
from tests.page.opened import Opened
from tests.support import DATA
from tests.support.cases import config as any_config
from tests.support.cases import sequence

VECTORS = json.loads((DATA / "lz_penalty.json").read_text())
GATED = json.loads((DATA / "gate.json").read_text())
EXPLAIN = "cases => cases.map(([tokens, size, settings, prompt]) => lzPenalty.explain(tokens, size, settings, prompt))"
V = 30


@pytest.fixture(scope="module")
def page(browser, tmp_path_factory):
    """One page for all cases."""
    file = tmp_path_factory.mktemp("page") / "page.html"
    file.write_text(explorer(config=LZPenaltyConfig(), text=""), encoding="utf-8")
    opened = Opened(browser, file.as_uri())
    yield opened.page
    opened.close()


@pytest.mark.parametrize(("vectors", "count"), [(VECTORS, 306), (GATED, 99)], ids=["plain", "gated"])
def test_golden_vectors(page, vectors, count):
    assert len(vectors) == count
    cases = [[one["tokens"], one["vocab_size"], one | {"strength": 1.0}, one["prompt_length"]] for one in vectors]
    for vector, got in zip(vectors, page.evaluate(EXPLAIN, cases), strict=True):
        assert (got["gate"] and got["gate"]["share"]) == pytest.approx(vector.get("copy_share"), abs=1e-8)
        bits = {str(one["token"]): one["bits"] for one in got["candidates"]}
        for token in bits.keys() | vector["adjustments"].keys():
            assert bits.get(token, 0.0) == pytest.approx(vector["adjustments"].get(token, 0.0), abs=1e-8)


def drawn(seed):
    rng = random.Random(seed)
    tokens = sequence(rng, rng.choice((0, 1, rng.randint(0, 90))), rng.choice((2, V, V + 1)))
    return tokens, any_config(rng, V), rng.randint(0, len(tokens))


def told(step):
    """Return an explanation from Python in the format of the page."""
    return {
        "window": list(step.window),
        "buffer": list(step.buffer),
        "longest": step.longest_match,
        "matches": [
            {
                "distance": match.distance,
                "start": match.start,
                "stop": match.stop,
                "nextToken": match.next_token,
                "extends": match.extends,
            }
            for match in step.matches
        ],
        "loop": step.loop and [step.loop.period, step.loop.copies, step.loop.start, step.loop.next_token],
        "gate": step.gate and {"share": step.gate.copy_share, "opening": step.gate.opening},
        "candidates": {
            one.token: [one.codelength, one.change, one.distance, one.match_length, one.extends, one.loop_bits]
            for one in step.candidates
        },
    }


def same_shape(got):
    loop = got["loop"]
    return {name: got[name] for name in ("window", "buffer", "longest", "matches", "gate")} | {
        "loop": loop and [loop["period"], loop["copies"], loop["start"], loop["nextToken"]],
        "candidates": {
            one["token"]: [
                one[name] for name in ("codelength", "change", "distance", "matchLength", "extends", "loopBits")
            ]
            for one in got["candidates"]
        },
    }


def assert_same(got, want):
    got, candidates = same_shape(got), want.pop("candidates")
    mine = got.pop("candidates")
    assert got == want
    assert mine.keys() == candidates.keys()
    for token, values in candidates.items():
        assert mine[token] == pytest.approx(values, abs=1e-9)


@settings(max_examples=25)
@given(st.lists(st.integers(0, 2**32), min_size=40, max_size=40))
def test_generated_cases(page, seeds):
    made = [drawn(seed) for seed in seeds]
    cases = [[tokens, V, asdict(config), prompt] for tokens, config, prompt in made]
    for (tokens, config, prompt), got in zip(made, page.evaluate(EXPLAIN, cases), strict=True):
        assert_same(got, told(explain(tokens, V, config=config, prompt_length=prompt)))


def test_the_comparison_can_fail(page):
    config = LZPenaltyConfig(window_size=8, buffer_size=2)
    tokens = [1, 2, 3, 4] * 3
    wrong = asdict(config) | {"buffer_size": 3}
    (got,) = page.evaluate(EXPLAIN, [[tokens, V, wrong, 0]])
    with pytest.raises(AssertionError):
        assert_same(got, told(explain(tokens, V, config=config)))
    gated = LZPenaltyConfig.guarded(gate_window=8)
    (got,) = page.evaluate(EXPLAIN, [[tokens, V, asdict(gated) | {"gate_window": 9}, 0]])
    with pytest.raises(AssertionError):
        assert_same(got, told(explain(tokens, V, config=gated)))


@settings(max_examples=20)
@given(st.lists(st.integers(0, 2**32), min_size=10, max_size=10))
def test_copy_shares_along_texts(page, seeds):
    made = [(tokens, config) for tokens, config, _ in map(drawn, seeds)]
    got = page.evaluate(
        "cases => cases.map(([tokens, settings]) => lzPenalty.copyShares(tokens, settings))",
        [[tokens, asdict(config)] for tokens, config in made],
    )
    for (tokens, config), shares in zip(made, got, strict=True):
        sizes = {name: getattr(config, name) for name in ("gate_window", "gate_from", "window_size")}
        n = config.min_match_length or 1
        assert shares == [reference.copy_share(tokens[:t], **sizes, min_match_length=n) for t in range(len(tokens) + 1)]


@settings(max_examples=20)
@given(st.lists(st.integers(0, 2**32), min_size=10, max_size=10))
def test_the_code_of_whole_texts(page, seeds):
    made = [drawn(seed) for seed in seeds]
    got = page.evaluate(
        "cases => cases.map(([tokens, size, settings]) => lzPenalty.codeBits(tokens, size, settings))",
        [[tokens, V, asdict(config)] for tokens, config, _ in made],
    )
    for (tokens, config, _), shares in zip(made, got, strict=True):
        whole = explain_sequence(tokens, V, config=config)
        assert shares == pytest.approx([one.code_bits for one in whole.tokens])


@pytest.mark.parametrize(
    ("tokens", "window", "want"),
    [
        ([1] * 20 + [2, 1] * 12, 4096, [(0, 20, 1, 20), (19, 44, 2, 12.5)]),
        ([1, 2] * 10 + [3, 2] * 10, 4096, [(0, 20, 2, 10), (19, 40, 2, 10.5)]),
        ([1, 2, 3] * 20, 4096, [(0, 60, 3, 20)]),
        ([1, 2, 3] * 20, 15, [(0, 60, 3, 20)]),
        (([1] * 15 + [2]) * 3, 4096, [(0, 48, 16, 3)]),
        (list(range(20)) + [7] * 12 + list(range(20)), 4096, [(20, 32, 1, 12)]),
    ],
)
def test_loops_of_a_text(page, tokens, window, want):
    loops = page.evaluate("([tokens, window]) => lzPenalty.loopsOf(tokens, { loop_window: window })", [tokens, window])
    assert [(one["start"], one["stop"], one["period"], one["copies"]) for one in loops] == want


# ---------------------------------------------------------------- the tokenizer

ODD = [
    "",
    " ",
    "\n\n  \t x",
    "don't I'll we've 'S 're",
    "3.14159 ½ ² Ⅷ ௧ 一二三 ٣٤",
    "naïve café Ångström ﬁ ß İ ǅ",
    "東京は日本の首都です。",
    "Москва слезам не верит",
    "مرحبا بالعالم ‏RTL‏",
    "👩‍👩‍👧‍👦 🇩🇪 🙂🙃 \U0001f9d1\u200d\U0001f4bb",
    "a\u00a0b\u2003c\u3000d\u0085e\ufefff\u200bg\u2028h\u180ei",
    "<|endoftext|>x<think>y</think><|pad|><|endoftext|",
    "\x00\x01\x1b[31m\x7f",
    "e\u0301 \u0300\u0301 \u20dd",
    "def f(x):\n    return {'a': [x**2, -1e-9]}\n",
    "</script><img src=x onerror=alert(1)>",
    "a" * 300 + "!" * 300 + " " * 300 + "7" * 30,
]


def same_ids(page, tokenizer, texts):
    for text, ids in zip(texts, page.evaluate("texts => texts.map(lzPenalty.encode)", texts), strict=True):
        assert ids == tokenizer(text).input_ids, repr(text[:80])


def test_ids_of_odd_texts(page, tokenizer):
    same_ids(page, tokenizer, ODD)


def test_ids_of_books(page, tokenizer):
    same_ids(page, tokenizer, [*bundled_model.passages()[:16], *bundled_model.prompts()])


@settings(max_examples=60)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cn"]), max_size=40), min_size=20, max_size=20))
def test_ids_of_any_text(page, tokenizer, texts):
    same_ids(page, tokenizer, texts)


def test_tokens_read_as_the_text_again(page, tokenizer):
    texts = [text for text in ODD if text.isascii()] + bundled_model.prompts()[:40]
    joined = page.evaluate(
        "texts => texts.map(text => lzPenalty.encode(text).map(id => lzPenalty.app.tokenizer.text(id)).join(''))", texts
    )
    assert joined == texts
    shown = page.evaluate("lzPenalty.encode('東').map(id => lzPenalty.app.tokenizer.text(id)).join('')")
    assert shown == "<e6><9d><b1>"
