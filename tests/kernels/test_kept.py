"""A prepared step with a gate keeps which tokens were copied. Its results never depend on what it has kept."""

import random

import pytest
import torch

from lz_penalty import LZPenaltyConfig, pack_configs, prepare_lz_penalty, reference
from lz_penalty._packing import gate_counts, pack_table
from lz_penalty.kernels import triton as triton_cuda
from lz_penalty.kernels.triton._kept import COPIED
from tests.support import cases, quick_or_deep
from tests.support.backends import DEVICE

VOCAB, CAPACITY, IDS = 40, 190, 12
EXEMPT = (3, 7)
WIDEST = LZPenaltyConfig(  # no row has larger sizes
    window_size=40,
    buffer_size=9,
    escalation=1.0,
    gate_low=0.1,
    gate_high=0.5,
    gate_window=130,
    exempt_token_ids=EXEMPT,
)


class Rows:
    """Rows whose texts, lengths and settings may change between two steps.

    Args:
        configs: the settings of each row.
        ahead: whether a step is two launches.
        dtype: of the tokens.
        drafts: how many of the newest tokens may be in an array of their own.
    """

    def __init__(self, configs, texts, lengths, *, ahead=False, dtype=torch.int32, drafts=0):
        self.configs, self.texts, self.lengths = configs, texts, lengths
        self.drafts = [0] * len(configs)  # of each row now
        count = len(configs)
        self._table = torch.from_numpy(self._rows()).to(DEVICE)
        exempt = pack_configs(LZPenaltyConfig(exempt_token_ids=EXEMPT)).exempt_ids
        packed = pack_table(
            pack_configs([WIDEST]).table.repeat(count, 0),
            exempt if DEVICE == "cpu" else torch.from_numpy(exempt).to(DEVICE),
            table=self._table.numpy() if DEVICE == "cpu" else self._table,
        )
        self._given = [
            torch.zeros((count, VOCAB), device=DEVICE),
            torch.zeros((count, CAPACITY), dtype=dtype, device=DEVICE),
            torch.zeros(count, dtype=torch.int32, device=DEVICE),
        ]
        if drafts:
            tail = torch.zeros((count, drafts), dtype=torch.int64, device=DEVICE)
            self._given += [None, None, tail, torch.zeros_like(self._given[2])]
        self._step = prepare_lz_penalty(*self._given, config=packed, backend="triton", ahead=ahead)

    def _rows(self):
        """The settings rows. All exempt ids are the same two, or none."""
        rows = pack_configs([LZPenaltyConfig(exempt_token_ids=EXEMPT), *self.configs]).table
        return rows[1:].copy()

    def check(self):
        """Do a step, and compare it with the reference."""
        logits, history, ends, *others = self._given
        self._table.copy_(torch.from_numpy(self._rows()))
        logits.zero_()
        history.copy_(torch.tensor(self.texts))
        ends.copy_(torch.tensor([length - drafts for length, drafts in zip(self.lengths, self.drafts, strict=True)]))
        if others:
            _, _, tails, tail_lengths = others
            tail_lengths.copy_(torch.tensor(self.drafts))
            for row, (end, drafts) in enumerate(zip(ends.tolist(), self.drafts, strict=True)):
                tails[row, :drafts] = history[row, end : end + drafts]
                history[row, end : end + drafts] = -1
        self._step(*self._given)
        for row, (text, length, config) in enumerate(zip(self.texts, self.lengths, self.configs, strict=True)):
            want = reference.penalise([0.0] * VOCAB, text[:length], **cases.settings_of(config), strength=1.0)
            assert logits[row].tolist() == pytest.approx(want, abs=2e-4, rel=2e-5), (row, length, config)


@pytest.fixture(params=[64] if DEVICE == "cpu" else [64, 512])
def block(request, monkeypatch):
    """The least number of places that a program compares together. With 64, some tokens that decide are further away."""
    monkeypatch.setattr(triton_cuda, "_BLOCKS", (request.param, 2048))


# ---------------------------------------------------------------- anything may happen


def some_config(rng):
    """Settings of any kind. Most have a gate, which is often partly open."""
    config = cases.replace(
        cases.config(rng, VOCAB), strength=1.0, include_prompt=True, exempt_token_ids=rng.choice(((), EXEMPT))
    )
    if rng.random() < 0.2:
        return config
    low = rng.choice((0.0, 0.0, 0.25, 0.5))
    gate = {
        "min_match_length": config.min_match_length or rng.choice((1, 2, 3, config.buffer_size + 1)),
        "gate_low": low,
        "gate_high": rng.choice((low + 0.04, low + 0.3, 1.0)),
        "gate_window": rng.choice((4, 12, 40, 70, 130)),
        "gate_from": rng.choice((None, 1, 5)),
    }
    if config.formula == "sglang":
        gate["min_match_length"] = 1
    if rng.random() < 0.4:
        gate["window_size"] = rng.randint(1, 9)
    return cases.replace(config, **{**gate, "min_match_length": min(gate["min_match_length"], config.buffer_size + 1)})


def some_text(rng):
    """Tokens that repeat, or a loop with mistakes."""
    if rng.random() < 0.5:
        return cases.sequence(rng, CAPACITY, IDS)
    period = [rng.randrange(IDS) for _ in range(rng.choice((1, 2, 3, 7, 15)))]
    return [period[i % len(period)] if rng.random() > 0.03 else rng.randrange(IDS) for i in range(CAPACITY)]


def change(rng, rows, row):
    """Change a row as an engine may do between two steps. Mostly, it grows by one token."""
    event = rng.random()
    grows = 1 if event < 0.9 else 0
    if 0.7 <= event < 0.84:  # and an old token is another one
        place = rng.randrange(1, min(130, rows.lengths[row]))
        rows.texts[row] = list(rows.texts[row])
        rows.texts[row][rows.lengths[row] - place] = rng.randrange(IDS)
    elif 0.84 <= event < 0.86:
        grows = 3
    elif 0.86 <= event < 0.88:
        grows = -2
    elif 0.88 <= event < 0.9:
        rows.texts[row] = some_text(rng)
    elif 0.9 <= event < 0.94:
        other = rng.randrange(len(rows.texts))
        rows.texts[row], rows.texts[other] = rows.texts[other], rows.texts[row]
    elif 0.94 <= event < 0.97:
        rows.configs[row] = some_config(rng)
    rows.lengths[row] = max(rows.lengths[row] + grows, 3)
    if rows.lengths[row] > CAPACITY:
        rows.lengths[row] = rng.randint(3, 100)


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("seed", quick_or_deep(range(1 if DEVICE == "cpu" else 10), range(30)))
def test_steps_equal_the_reference_whatever_happens_between_them(seed, ahead):
    """Rows grow by one or more tokens, are cut, get another history, another slot or other settings, or stay the same."""
    rng = random.Random(f"{seed} {ahead}")
    count, drafts = (3 if DEVICE == "cpu" else 16), rng.choice((0, 3))
    rows = Rows(
        [some_config(rng) for _ in range(count)],
        [some_text(rng) for _ in range(count)],
        [rng.randint(3, 100) for _ in range(count)],
        ahead=ahead,
        dtype=rng.choice((torch.int32, torch.int64)),
        drafts=drafts,
    )
    for _ in range(quick_or_deep(8 if DEVICE == "cpu" else 40, 40)):
        for row in range(count):
            change(rng, rows, row)
            rows.drafts[row] = rng.randint(0, min(drafts, rows.lengths[row] - 1)) if rng.random() < 0.3 else 0
        rows.check()


# ---------------------------------------------------------------- each of these shows one mistake


def gated(**changes):
    """Settings with a gate that is partly open, so that each copied position changes the result."""
    usual = {"strength": 1.0, "window_size": 40, "buffer_size": 9, "lookback": "adjacent", "min_match_length": 1}
    return LZPenaltyConfig(**{**usual, "gate_low": 0.0, "gate_high": 1.0, "gate_window": 70, **changes})


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("lookback", quick_or_deep(("adjacent",), ("adjacent", "before_buffer")))
def test_a_changed_token_is_seen_wherever_it_is(lookback):
    """A period as long as the window is copied from the most distant tokens that decide: 70 + 40 + 1 of them.

    In every second step a token is another one. In the step after it, one place further, it is as before.
    """
    text = [i % 40 for i in range(CAPACITY)]
    rows = Rows([gated(lookback=lookback)], [text], [125])
    for place in (0, *quick_or_deep((1, 39, 63, 65, 69, 110), range(1, 112))):
        changed = list(text)
        if place:
            changed[rows.lengths[0] - 1 - place] = 50
        for rows.texts[0] in (changed, text):
            rows.check()
            rows.lengths[0] = 125 + (rows.lengths[0] + 1 - 125) % 60


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("lookback", ["adjacent", "before_buffer"])
def test_positions_are_counted_as_they_come_and_go(lookback):
    """New tokens, then one token again and again, then new tokens: the number goes up to the gate window and down to 0.

    At each threshold, the gate is wholly closed or open with one number of copied positions, and not with the next.
    """
    size, low, high = 7, 2, 5
    text = [*range(30), *[30] * (size + 2), *range(size + 2)]
    text += [0] * (CAPACITY - len(text))
    # The new tokens at the end are old ones, one token too far away.
    sizes = {"window_size": 30 + size + 1, "gate_window": size}
    config = gated(lookback=lookback, gate_low=low / size, gate_high=high / size, **sizes)
    rows = Rows([config], [text], [28])
    for rows.lengths[0] in range(28, 30 + 2 * (size + 2)):
        rows.check()


@pytest.mark.usefixtures("block")
def test_rewinds_and_jumps():
    """What was kept has the right tokens, but is for another number of tokens."""
    text = [*range(12), *[12, 13, 12, 13, 12, 13], *range(20, 23), *[14] * 7, *range(24, 30)]
    text += [0] * (CAPACITY - len(text))
    rows = Rows([gated(window_size=9, gate_window=5)], [text], [16])
    for steps in (0, 1, 1, -1, 1, 7, 1, -3, 1, 2, 0, 1, -9, 12, 1):
        rows.lengths[0] += steps
        rows.check()


@pytest.mark.usefixtures("block")
def test_the_first_tokens_of_a_context_can_be_copied():
    """The second period is as long as the buffer."""
    configs = [gated(gate_window=5, gate_from=1, lookback=name) for name in ("adjacent", "before_buffer")]
    texts = [[i % period for i in range(CAPACITY)] for period in (3, 9)]
    rows = Rows(configs, texts, [1, 6])
    for _ in range(9):
        rows.check()
        rows.lengths = [length + 1 for length in rows.lengths]


@pytest.mark.usefixtures("block")
def test_the_number_of_copied_positions_is_kept(monkeypatch):
    """A step does not count again: with another number, its result is another one."""
    kept = []
    arrays = triton_cuda._Kept.arrays
    monkeypatch.setattr(triton_cuda._Kept, "arrays", lambda self, logits: kept.append(arrays(self, logits)) or kept[-1])
    rows = Rows([gated(gate_window=12)], [[0, 1, 2, *range(4, 20), *[20, 21] * 10, *[0] * 151]], [22])
    for _ in range(4):
        rows.check()
        rows.lengths[0] += 1
    kept[-1][2][:, COPIED.value] += 1
    with pytest.raises(AssertionError):
        rows.check()


@pytest.mark.usefixtures("block")
def test_each_setting_counts():
    """As the text goes on, one setting or two have another value for two steps, and then the old one for one step."""
    text = [*range(12), *[12, 13, 14] * 59, 0]
    rows = Rows([gated()], [text], [17])
    for changes in (
        {},
        {"min_match_length": 4},
        {"gate_window": 5},
        {"window_size": 2},
        {"lookback": "before_buffer"},
        {"buffer_size": 4},
        {"buffer_size": 3, "min_match_length": 4},
    ):
        for settings in (changes, changes, {}):
            rows.configs[0] = gated(**{"gate_window": 12, **settings})
            rows.check()
            rows.lengths[0] += 1


def test_thresholds_in_copied_positions():
    for window in (4, 7, 12, 96, 384):
        for low, high in ((0.0, 1.0), (0.35, 0.5), (0.4, 0.5), (1 / 7, 6 / 7), (0.25, 0.75), (0.999, 1.0)):
            not_open, closed = divmod(gate_counts(low, high, window), 2**16)
            assert closed == max(count for count in range(window + 1) if count / window <= low)
            assert not_open == max(count for count in range(window + 1) if count / window < high)
