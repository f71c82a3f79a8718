"""A prepared step with a gate keeps which tokens were copied. Its results never depend on what it has kept."""

import random

import pytest
import torch

from lz_penalty import LZPenaltyConfig, pack_configs, prepare_lz_penalty, reference
from lz_penalty._packing import pack_table
from tests.support import cases, quick_or_deep
from tests.support.backends import DEVICE

VOCAB, CAPACITY = 40, 150


def some_config(rng):
    return cases.replace(
        cases.config(rng, VOCAB),
        strength=1.0,
        include_prompt=True,
        exempt_token_ids=(),
        **{"min_match_length": 1, "formula": "paper", "lookback": None, **rng.choice(GATES)},
    )


GATES = (
    {"gate_low": 0.0, "gate_high": 1.0, "gate_window": 12},
    {"gate_low": 0.1, "gate_high": 0.9, "gate_window": 40, "window_size": 9},
    {"gate_low": None, "gate_high": None},
)
# With seed 44, each kind of event happens within 8 steps. The interpreter takes a third of a second for a step.
QUICK, MANY = ([44], range(40, 46)) if DEVICE == "cpu" else (range(10), range(30))


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("seed", quick_or_deep(QUICK, MANY))
def test_steps_equal_the_reference_whatever_happens_between_them(seed, ahead):
    """Rows grow by one or more tokens, are cut, get another history, another slot or other settings, or stay the same."""
    rng = random.Random(seed)
    rows = 3
    texts = [cases.sequence(rng, CAPACITY, 12) for _ in range(rows)]
    lengths = [rng.randint(20, 60) for _ in range(rows)]
    configs = [some_config(rng) for _ in range(rows)]
    table = pack_configs(configs).table
    where = None if DEVICE == "cpu" else DEVICE
    on_device = table if where is None else torch.from_numpy(table).to(where)
    largest = pack_configs([LZPenaltyConfig.guarded(window_size=40, buffer_size=9, gate_window=40)]).table
    exempt = pack_configs(None).exempt_ids
    packed = pack_table(
        largest.repeat(rows, 0), exempt if where is None else torch.from_numpy(exempt).to(where), table=on_device
    )
    given = [torch.zeros((rows, VOCAB), device=DEVICE), torch.zeros((rows, CAPACITY), dtype=torch.int32, device=DEVICE)]
    given += [torch.tensor(lengths, dtype=torch.int32, device=DEVICE)]
    penalise = prepare_lz_penalty(*given, config=packed, backend="triton", ahead=ahead)
    for _ in range(quick_or_deep(8 if DEVICE == "cpu" else 60, 60)):
        for row in range(rows):
            event = rng.random()
            if event < 0.7:
                lengths[row] += 1
            elif event < 0.75:
                lengths[row] += 3
            elif event < 0.8:
                lengths[row] -= 2
            elif event < 0.84:
                texts[row] = cases.sequence(rng, CAPACITY, 12)
            elif event < 0.88:
                other = rng.randrange(rows)
                texts[row], texts[other] = texts[other], texts[row]
            elif event < 0.92:
                configs[row] = some_config(rng)
            lengths[row] = min(max(lengths[row], 3), CAPACITY)
        on_device[...] = pack_configs(configs, where).table
        logits, history, ends = (array.zero_() for array in given)
        history.copy_(torch.tensor(texts))
        ends.copy_(torch.tensor(lengths))
        penalise(logits, history, ends)
        for row, config in enumerate(configs):
            want = reference.penalise(
                [0.0] * VOCAB, texts[row][: lengths[row]], **cases.settings_of(config), strength=1.0
            )
            assert logits[row].tolist() == pytest.approx(want, abs=1e-4)
