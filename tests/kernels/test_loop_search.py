"""The Triton kernels' search for a loop at the end of texts that nearly repeat themselves, where many periods look right."""

import numpy as np
import pytest
import torch

from lz_penalty import LZPenaltyConfig, apply_lz_penalty_
from lz_penalty.kernels.triton import _loop
from lz_penalty.loops import trailing_loop
from tests.support.backends import DEVICE

LENGTH, VOCAB = 700, 50
CONFIG = LZPenaltyConfig.failsafe(loop_window=LENGTH)


def with_mistakes(period, rate, seed):
    """Return copies of a random unit, with some tokens replaced."""
    rng = np.random.default_rng(seed)
    text = np.resize(rng.integers(0, VOCAB, period), LENGTH)
    return np.where(rng.random(LENGTH) < rate, rng.integers(0, VOCAB, LENGTH), text)


def one_mistake(period, place):
    """Return copies of a unit with one wrong token, so many places before the end: it contradicts all longer periods."""
    text = np.resize(np.arange(period), LENGTH)
    text[-1 - place] = VOCAB - 1
    return text


def near_copies(inner, copies, replaced, seed):
    """Return a loop whose unit consists of copies of a shorter unit; in some of these, one token is replaced."""
    rng = np.random.default_rng(seed)
    unit = np.resize(rng.integers(0, VOCAB - 1, inner), inner * copies)
    unit[rng.permutation(copies)[:replaced] * inner + rng.permutation(inner)[:replaced]] = VOCAB - 1
    return np.resize(unit, LENGTH)


TEXTS = {
    "near-copies in the unit": [
        near_copies(inner, 5, replaced, seed) for inner in (20, 31) for replaced in (1, 2, 5) for seed in range(4)
    ],
    "one mistake": [one_mistake(period, place) for period in (1, 2, 7) for place in (30, 150, 230)],
    "a mistake among the newest tokens": [one_mistake(period, place) for period in (1, 3) for place in (0, 1, 2, 5)],
    "few mistakes": [with_mistakes(period, 0.01, seed) for period in (1, 2, 5, 20) for seed in range(3)],
    "many mistakes": [with_mistakes(period, 0.06, seed) for period in (1, 2, 5, 20) for seed in range(3)],
    "two tokens": [np.random.default_rng(seed).integers(0, 2, LENGTH) for seed in range(6)],
}


@pytest.mark.skipif(DEVICE != "cpu", reason="the runs are counted in Triton's interpreter")
def test_few_runs_are_measured(monkeypatch):
    """Each run takes about a microsecond on a GPU, one after the other."""
    measured, original = [], _loop.run_length

    def run_length(*given, **constants):
        measured.append(1)
        return original(*given, **constants)

    monkeypatch.setattr(_loop, "run_length", run_length)
    for name, texts in TEXTS.items():
        for text in texts:
            measured.clear()
            text = torch.from_numpy(text)[None]
            apply_lz_penalty_(torch.zeros(1, VOCAB), text, config=CONFIG, backend="triton")
            assert len(measured) <= 6, name
    assert measured


@pytest.mark.parametrize("name", TEXTS)
def test_the_loop_is_the_one_of_the_definition(name):
    texts = torch.from_numpy(np.stack(TEXTS[name]))
    logits = torch.zeros(len(texts), VOCAB)
    found = apply_lz_penalty_(logits.to(DEVICE, copy=True), texts.to(DEVICE), config=CONFIG, backend="triton").cpu()
    expected = apply_lz_penalty_(logits, texts, config=CONFIG, backend="numpy")
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    looped = [trailing_loop(text.tolist(), LENGTH) is not None for text in texts]
    assert [row.any().item() for row in expected] == looped
