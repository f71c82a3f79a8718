"""Random batches on the histories alone: requests come, are retracted and resumed, leave, and outgrow their slots.

A third has a policy, whose sections change and whose markers are forced at random. On a machine with a CUDA device, there,
and nothing may wait for it. SGLang is not needed.
"""

import random
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cases import config as random_config
from cases import sequence, settings_of
from requests_and_truth import check_row
from where import DEVICE, nothing_waits

from lz_penalty import LZPenaltyConfig, reference
from lz_penalty.engines import request_settings
from lz_penalty.engines.request_settings import RequestSettings
from lz_penalty.engines.server import ServerSettings
from lz_penalty.engines.sglang.history import History, Penalised
from lz_penalty.policy import SECTIONS, Ladder, Policy, RequestPolicy, settings_from_request

VOCAB, SLOTS, SPECIAL = 100, 8, (3, 7)


@dataclass(eq=False)
class Sequence:
    prompt: list[int]
    fields: dict
    config: LZPenaltyConfig | None
    configs: list | None = None  # of a policy, by section
    output: list[int] = field(default_factory=list)
    state: Penalised | None = None
    slot: int = -1

    @property
    def length(self):
        return len(self.prompt) + len(self.output)

    def turn(self, rng):
        """What the newest token may do to a policy."""
        watched = self.state.watched
        watched.length = self.length
        if rng.random() < 0.2:
            watched.section = rng.randrange(5)
        watched.forced = rng.randrange(VOCAB) if rng.random() < 0.1 and not watched.shadow else None
        self.config = self.configs[watched.section]


class Simulation:
    def __init__(self, seed, policies=0.3, server=ServerSettings()):  # noqa: B008
        self.policies = policies
        self.server = server
        self.rng = random.Random(seed)
        torch.manual_seed(seed)
        self.history = History(RequestSettings(server, SPECIAL, SLOTS, DEVICE), SLOTS, 10_000, DEVICE)
        self.differed = 0
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
        prompt = [abs(token) % VOCAB for token in sequence(rng, rng.randint(1, 300), 30)]
        if rng.random() < self.policies:
            return self._new_policy(prompt)
        config = random_config(rng, 30, window=40, buffer=9) if rng.random() < 0.8 else None
        config = config and replace(config, loop_window=min(80, config.loop_window))
        config = config if config and config.strength else None
        fields = {} if config is None else config.to_request()
        return Sequence(prompt, fields, config, state=None if config is None else Penalised())

    def _new_policy(self, prompt):
        rng = self.rng
        names = ("thinking", "answer", "code", "tool_call", "table")
        fields = {"lz_" + name: rng.choice(("paper", "guarded", "failsafe", "sglang", "none")) for name in names}
        fields |= {"lz_penalty": 0.5, "lz_window_size": 40, "lz_buffer_size": 9, "lz_loop_window": rng.randint(20, 80)}
        fields |= {"lz_include_prompt": rng.random() < 0.5, "lz_exempt_token_ids": [rng.randrange(30)]}
        fields |= {"lz_shadow": rng.random() < 0.5, "lz_stop_copies": 20}
        if self.server.default is not None:  # its sections differ in their exempt ids
            fields = {"lz_shadow": rng.random() < 0.5, "lz_code": rng.choice(("paper", "none")), "lz_window_size": 40}
        asked = settings_from_request(fields, self.server.default)
        watched = SimpleNamespace(section=1, forced=None, length=0, shadow=asked.shadow, would_differ=None)
        return Sequence(prompt, fields, None, asked.policy.configs, state=Penalised(watched=watched))

    def _leave(self):
        one = self.running.pop(self.rng.randrange(len(self.running)))
        self.free.append(one.slot)
        if self.rng.random() < 0.5:
            self.retracted.append(one)

    def _forward(self, arriving, decoding):
        """A step as the plug-in sees it: prefills first, each with all its tokens as inputs, then one token per row."""
        rows = [*arriving, *decoding]
        loads = [
            (one.state, one.fields, one.slot, one.prompt + one.output, len(one.prompt))
            for one in arriving
            if one.state is not None
        ]
        if loads:
            with nothing_waits():
                self.history.load(loads)
        inputs, newest_at = [], []
        for one in rows:
            inputs += (one.prompt + one.output)[-1:] if one in decoding else one.prompt + one.output
            newest_at.append(len(inputs) - 1 if one in decoding else -1)
        states, lengths = [one.state for one in rows], np.array([one.length for one in rows])
        batch = SimpleNamespace(
            input_ids=torch.tensor(inputs, device=DEVICE),
            seq_lens=torch.tensor(lengths, device=DEVICE),
            req_pool_indices=torch.tensor([one.slot for one in rows], device=DEVICE),
        )
        before = torch.randn(len(rows), VOCAB) / 4
        after = before.to(DEVICE, copy=True)
        if any(states):
            with nothing_waits():
                step = self.history.step(states, lengths, np.array(newest_at) if arriving else None)
                for one in rows:
                    if one.configs is not None:
                        one.turn(self.rng)
                self.history.apply(step, after, batch)
        after = after.cpu()
        for row, one in enumerate(rows):
            self._check(one, before[row], after[row])
            self._append(one)

    def _check(self, one, before, after):
        watched = one.state and one.state.watched
        if watched and watched.shadow:
            assert torch.equal(before, after)
            self._check_shadow(one, before)
        elif watched and watched.forced is not None:
            assert after.argmax() == watched.forced
            assert after.softmax(0).max() == 1
        elif one.config is None:
            assert torch.equal(before, after)
        else:
            check_row(before, after, one.prompt, one.output, one.config, SPECIAL)

    def _check_shadow(self, one, before):
        penalised, differs = before, one.state.watched.would_differ()
        if one.config is not None:
            context = (one.prompt if one.config.include_prompt else []) + one.output
            exempt = {"exempt_token_ids": (*one.config.exempt_token_ids, *SPECIAL)}
            settings = settings_of(one.config) | exempt
            penalised = torch.tensor(reference.penalise(before.tolist(), context, strength=0.5, **settings))
        assert differs == (before.argmax() != penalised.argmax())
        self.differed += differs

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


def test_policies():
    """In shadow mode there is something to count."""
    simulation = Simulation(0, policies=1)
    for _ in range(150):
        simulation.step()
    assert simulation.differed > 10


def test_sections_with_exempt_ids_of_their_own():
    configs = {
        name: LZPenaltyConfig.guarded(strength=0.5, loop_window=80, exempt_token_ids=range(4 * i, 4 * i + 5))
        for i, name in enumerate(SECTIONS)
    }
    default = RequestPolicy(policy=Policy(**configs), ladder=Ladder(stop_copies=20))
    simulation = Simulation(0, policies=1, server=ServerSettings(default=default))
    for _ in range(150):
        simulation.step()
    assert simulation.differed > 10


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
