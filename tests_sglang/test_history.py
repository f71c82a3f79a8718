"""Random batches on the histories alone: requests come, are retracted and resumed, leave, and outgrow their slots."""

import random
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cases import config as random_config
from cases import sequence
from requests_and_truth import check_row

from lz_penalty import LZPenaltyConfig
from lz_penalty.engines import request_settings
from lz_penalty.engines.request_settings import RequestSettings
from lz_penalty.engines.server import ServerSettings
from lz_penalty.engines.sglang.history import History, Penalised

VOCAB, SLOTS, SPECIAL = 100, 8, (3, 7)


@dataclass(eq=False)
class Sequence:
    prompt: list[int]
    config: LZPenaltyConfig | None
    output: list[int] = field(default_factory=list)
    state: Penalised | None = None
    slot: int = -1

    @property
    def length(self):
        return len(self.prompt) + len(self.output)


class Simulation:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        torch.manual_seed(seed)
        cpu = torch.device("cpu")
        self.history = History(RequestSettings(ServerSettings(), SPECIAL, SLOTS, cpu), SLOTS, 10_000, cpu)
        self.running, self.retracted, self.free = [], [], list(range(1, SLOTS))

    def step(self):
        rng = self.rng
        while self.running and rng.random() < 0.05:
            self._leave()
        arriving = []
        while self.free and rng.random() < 0.3:
            arriving.append(self.retracted.pop() if self.retracted and rng.random() < 0.5 else self._new())
            arriving[-1].slot = self.free.pop(rng.randrange(len(self.free)))
        if arriving:
            self._forward(arriving, decoding=self.running if rng.random() < 0.5 else [])
            self.running = [*self.running, *arriving]
        if rng.random() < 0.3:
            rng.shuffle(self.running)
        if self.running:
            self._forward([], decoding=self.running)

    def _new(self):
        rng = self.rng
        config = random_config(rng, 30, window=40, buffer=9) if rng.random() < 0.8 else None
        config = config and replace(config, loop_window=min(80, config.loop_window))
        config = config if config and config.strength else None
        prompt = [abs(token) % VOCAB for token in sequence(rng, rng.randint(1, 300), 30)]
        return Sequence(prompt, config, state=None if config is None else Penalised())

    def _leave(self):
        one = self.running.pop(self.rng.randrange(len(self.running)))
        self.free.append(one.slot)
        if self.rng.random() < 0.5:
            self.retracted.append(one)

    def _forward(self, arriving, decoding):
        """A step as the plug-in sees it: prefills first, each with all its tokens as inputs, then one token per row."""
        rows = [*arriving, *decoding]
        loads = [
            (one.state, one.config.to_request(), one.slot, one.prompt + one.output, len(one.prompt))
            for one in arriving
            if one.config is not None
        ]
        if loads:
            self.history.load(loads)
        inputs, newest_at = [], []
        for one in rows:
            inputs += (one.prompt + one.output)[-1:] if one in decoding else one.prompt + one.output
            newest_at.append(len(inputs) - 1 if one in decoding else -1)
        states, lengths = [one.state for one in rows], np.array([one.length for one in rows])
        batch = SimpleNamespace(
            input_ids=torch.tensor(inputs),
            seq_lens=torch.tensor(lengths),
            req_pool_indices=torch.tensor([one.slot for one in rows]),
        )
        before = torch.randn(len(rows), VOCAB)
        after = before.clone()
        if any(states):
            step = self.history.step(states, lengths, np.array(newest_at) if arriving else None)
            self.history.apply(step, after, batch)
        for row, one in enumerate(rows):
            if one.config is None:
                assert torch.equal(before[row], after[row])
            else:
                check_row(before[row], after[row], one.prompt, one.output, one.config, SPECIAL)
            self._append(one)

    def _append(self, one):
        rng, output = self.rng, one.output
        output.append(output[-rng.randint(1, 4)] if len(output) > 4 and rng.random() < 0.7 else rng.randrange(30))


@pytest.mark.parametrize("seed", range(8))
def test_random_batches(monkeypatch, seed):
    monkeypatch.setattr(request_settings, "SLACK", 3)  # so that histories outgrow their slots
    monkeypatch.setattr(RequestSettings, "longest_reach", 80)
    simulation = Simulation(seed)
    for _ in range(150):
        simulation.step()


def test_a_late_token_would_be_noticed(monkeypatch):
    """The check can fail: with the inputs of the step before, as under overlap scheduling on the host."""
    apply = History.apply

    def late(self, step, logits, batch):
        batch.input_ids = batch.input_ids.roll(1)
        apply(self, step, logits, batch)

    monkeypatch.setattr(History, "apply", late)

    def run():
        simulation = Simulation(0)
        for _ in range(50):
            simulation.step()

    with pytest.raises(AssertionError, match="reference"):
        run()
