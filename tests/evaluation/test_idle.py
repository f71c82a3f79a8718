"""A penalty that `is_idle` calls idle changes no logit; one that changes a logit is never called idle."""

import random
from dataclasses import replace

import pytest

from lz_penalty import LZPenaltyConfig
from lz_penalty.evaluation.idle import is_idle
from lz_penalty.reference import adjustments
from tests.support import cases

VOCAB = 40
SMALL = {"window_size": 40, "gate_window": 16, "include_prompt": False}
CONFIGS = {
    "guarded": LZPenaltyConfig.guarded(**SMALL),
    "closed": LZPenaltyConfig.guarded(**SMALL | {"gate_low": 0.9, "gate_high": 1.0, "escalation": 0.0}),
    "sglang": LZPenaltyConfig.sglang(**SMALL | {"gate_low": 0.6, "gate_high": 0.8}),
    "failsafe": LZPenaltyConfig.failsafe(include_prompt=False),
    "paper": LZPenaltyConfig.paper(include_prompt=False),
}


def acts(config: LZPenaltyConfig, output: list[int]) -> bool:
    settings = cases.settings_of(config)
    return any(any(adjustments(output[:end], VOCAB, **settings).values()) for end in range(1, len(output) + 1))


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_idle_means_that_no_logit_changes(config):
    rng = random.Random(7)
    answers = {True: 0, False: 0}
    for _ in range(150):
        output = [abs(token) % VOCAB for token in cases.sequence(rng, rng.randrange(1, 60), VOCAB)]
        idle = is_idle(config, output)
        answers[idle] += 1
        if idle:
            assert not acts(config, output)
    if config.gate_low is None and config.min_match_length is not None:
        assert not answers[True]
    else:
        assert all(answers.values())


def test_a_penalty_that_sees_the_prompt_is_never_idle():
    assert not is_idle(replace(CONFIGS["guarded"], include_prompt=True), [*range(30)])
