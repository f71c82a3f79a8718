"""Metamorphic laws: relations between results that hold for any numbers."""

import random
from dataclasses import replace

import pytest

from lz_penalty import LZPenaltyConfig
from tests.support import cases
from tests.support.backends import ALL
from tests.support.settings import UNGATED

PRESETS = {
    "paper": LZPenaltyConfig.paper(),
    "sglang": LZPenaltyConfig.sglang(include_prompt=True),
    "ungated": UNGATED,
    "guarded": LZPenaltyConfig.guarded(include_prompt=True, gate_window=24),
    "failsafe": LZPenaltyConfig.failsafe(),
}
VOCAB = 23


def looping(seed: int, length: int = 70) -> list[int]:
    rng = random.Random(seed)
    return [abs(token) % VOCAB for token in cases.sequence(rng, length, VOCAB)]


def small(config: LZPenaltyConfig) -> LZPenaltyConfig:
    return replace(config, window_size=30, buffer_size=6, strength=0.7)


def logits(seed: int) -> list[float]:
    rng = random.Random(seed)
    return [rng.uniform(-5, 5) for _ in range(VOCAB)]


@pytest.mark.parametrize("backend", ALL, ids=str)
@pytest.mark.parametrize("config", list(map(small, PRESETS.values())), ids=PRESETS)
class TestLaws:
    def test_relabelling_permutes_the_result(self, backend, config):
        order = list(range(VOCAB))
        random.Random(1).shuffle(order)
        scores = logits(2)
        (plain,) = backend.penalise([scores], [looping(3)], config)
        moved = [0.0] * VOCAB
        for token, score in enumerate(scores):
            moved[order[token]] = score
        (relabelled,) = backend.penalise([moved], [[order[t] for t in looping(3)]], config)
        assert [relabelled[order[token]] for token in range(VOCAB)] == plain

    def test_tokens_beyond_every_window_do_not_matter(self, backend, config):
        config = replace(config, loop_window=40)
        tokens = looping(4)
        gate = config.gate_window if config.gate_high else 0
        reach = max(config.window_size + config.buffer_size + gate, config.loop_window)
        other = [0] * (len(tokens) - reach) + tokens[-reach:]
        assert backend.penalise([logits(5)], [tokens], config) == backend.penalise([logits(5)], [other], config)

    def test_strength_zero_is_the_identity(self, backend, config):
        scores = [*logits(6)[:-3], float("nan"), float("-inf"), float("inf")]
        (same,) = backend.penalise([scores], [looping(7)], replace(config, strength=0.0))
        assert str(same) == str(backend.floats([scores]).tolist()[0])

    def test_a_batch_equals_its_rows(self, backend, config):
        rows = [looping(seed) for seed in range(8, 14)]
        scores = [logits(seed) for seed in range(6)]
        configs = [config, None, *list(PRESETS.values())[:4]]
        together = backend.penalise(scores, rows, configs)
        alone = [
            backend.penalise([score], [row], [one])[0] for score, row, one in zip(scores, rows, configs, strict=True)
        ]
        assert together == alone

    def test_the_penalty_never_rewards(self, backend, config):
        scores = logits(14)
        (after,) = backend.penalise([scores], [looping(15) + [5, 6] * 5], config)
        before = backend.floats([scores]).tolist()[0]
        assert all(now <= was for now, was in zip(after, before, strict=True))
        assert after != before

    def test_longer_loops_are_not_cheaper(self, backend, config):
        """Each further copy of a unit leaves the token that continues it at least as heavily penalised."""
        unit = [3, 1, 4, 1, 5]
        bits = [backend.penalise([[0.0] * VOCAB], [unit * copies], config)[0][3] for copies in range(4, 9)]
        assert bits == sorted(bits, reverse=True)


@pytest.mark.parametrize("backend", ALL, ids=str)
def test_float16_does_not_overflow(backend):
    if "float16" not in backend.dtypes:
        return
    config = replace(UNGATED, strength=100.0, escalation=100.0)
    (after,) = backend.penalise([[65504.0, -65504.0, 1.0, float("-inf")]], [[0] * 40], config, dtype="float16")
    assert after == [-65504.0, -65504.0, 1.0, float("-inf")]
    (after,) = backend.penalise([[1.0, -65504.0, 1.0, float("-inf")]], [[1] * 40], config, dtype="float16")
    assert after == [1.0, -65504.0, 1.0, float("-inf")]
    (after,) = backend.penalise([[1.0, 2.0, 1.0, float("-inf")]], [[3] * 40], config, dtype="float16")
    assert after == [1.0, 2.0, 1.0, float("-inf")]


@pytest.mark.parametrize("backend", ALL, ids=str)
def test_only_looping_text_is_touched_by_failsafe(backend):
    config = LZPenaltyConfig.failsafe()
    scores = logits(16)
    (same,) = backend.penalise([scores], [[1, 2, 3, 4, 5, 1, 2, 3, 4, 5]], config)  # two copies: no loop
    assert same == backend.floats([scores]).tolist()[0]
    (after,) = backend.penalise([scores], [[1, 2, 3, 4, 5] * 3], config)
    changed = [token for token in range(VOCAB) if after[token] != same[token]]
    assert changed == [1]
