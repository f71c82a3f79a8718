"""Random batches on SGLang's histories alone: requests come, are retracted and resumed, leave, and outgrow their slots.

Some are prefilled in chunks. A share has a policy, whose sections change and whose markers are forced at random. Every row
of logits is compared with the reference. On a machine with a CUDA device, there, and nothing may wait for it. SGLang is not
needed.
"""

from __future__ import annotations

import random
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch

from lz_penalty import LZPenaltyConfig, reference
from lz_penalty.engines import _requests as request_settings
from lz_penalty.engines._requests import SettingsReader
from lz_penalty.engines.server import ServerSettings
from lz_penalty.engines.sglang._history import History, Penalised
from lz_penalty.policy import settings_from_request
from tests.support.cases import sequence, settings_of
from tests.support.requests_and_truth import check_row, config_within, is_partly_open
from tests.support.where import DEVICE, nothing_waits

SPECIAL = (3, 7)
REACH = 80  # of the requests here


@contextmanager
def small_slots(slack: int = 3, reach: int = REACH):
    """Histories outgrow their slots after a few tokens."""
    with (
        mock.patch.object(request_settings, "SLACK", slack),
        mock.patch.object(SettingsReader, "longest_reach", reach),
    ):
        yield


@dataclass(eq=False)
class Sequence:
    prompt: list[int]
    fields: dict
    config: LZPenaltyConfig | None
    configs: list | None = None  # of a policy, by section
    output: list[int] = field(default_factory=list)
    state: Penalised | None = None
    slot: int = -1
    prefilled: int = 0  # tokens, while it is prefilled in chunks

    @property
    def tokens(self):
        return self.prompt + self.output

    @property
    def length(self):
        return len(self.prompt) + len(self.output)

    def turn(self, rng, vocab):
        """What the newest token may do to a policy."""
        generation = self.state.generation
        generation.length = self.length
        if rng.random() < 0.2:
            generation.section = rng.randrange(5)
        generation.forced = rng.randrange(vocab) if rng.random() < 0.1 and not generation.shadow else None
        self.config = self.configs[generation.section]


class RandomGeneration(SimpleNamespace):
    """In place of `Generation`: its section and the token that is forced are random."""

    prompt, section, forced, length, settings_rows = (), 1, None, 0, None

    @property
    def settings_row(self):
        return self.settings_rows[self.section]

    def note(self, flags, index):
        self.would_differ = lambda: flags[index]


class Simulation:
    """What SGLang's scheduler does to the histories.

    Args:
        seed: of all random numbers.
        policies: the share of requests with a policy.
        server: its default, if any, has a policy.
        slots: rows of `req_to_token`; the first is nobody's.
        vocab: width of the logits.
        prompt: the longest prompt.
    """

    def __init__(
        self,
        seed: Any,
        policies: float = 0.3,
        slots: int = 8,
        vocab: int = 100,
        prompt: int = 300,
        server: ServerSettings = ServerSettings(),  # noqa: B008
    ):
        self.policies, self.vocab, self.longest_prompt, self.server = policies, vocab, prompt, server
        self.rng = random.Random(seed)
        self.random = torch.Generator().manual_seed(self.rng.getrandbits(63))
        self.history = History(SettingsReader(server, SPECIAL, slots, DEVICE), slots, 10_000, DEVICE)
        self.differed = self.partly_open = 0
        self.running, self.retracted, self.free = [], [], list(range(1, slots))
        self.in_chunks = []

    def step(self):
        rng = self.rng
        while self.running and rng.random() < 0.05:
            self._leave()
        arriving, chunks = self._arriving()
        if arriving or chunks:
            self._forward(arriving, self.running if rng.random() < 0.5 else [], chunks)
            self.running = [*self.running, *arriving]
        if rng.random() < 0.3:
            rng.shuffle(self.running)
        if self.running:
            self._forward([], decoding=self.running)

    def _arriving(self):
        """Requests whose prefill ends in the next step, and those of which it takes a chunk that is not the last."""
        rng = self.rng
        waiting, self.in_chunks = self.in_chunks, []
        while self.free and rng.random() < 0.3:
            waiting.append(self.retracted.pop() if self.retracted and rng.random() < 0.5 else self._new())
            waiting[-1].slot = self.free.pop(rng.randrange(len(self.free)))
            waiting[-1].prefilled = 0
        for one in waiting:
            left = one.length - one.prefilled
            if left > 1 and rng.random() < 0.3:
                one.prefilled += rng.randint(1, left - 1)
                self.in_chunks.append(one)
        return [one for one in waiting if one not in self.in_chunks], list(self.in_chunks)

    def _new(self):
        rng = self.rng
        prompt = [abs(token) % self.vocab for token in sequence(rng, rng.randint(1, self.longest_prompt), 30)]
        if rng.random() < self.policies:
            return self._new_policy(prompt)
        config = config_within(rng, REACH) if rng.random() < 0.8 else None
        config = config if config and config.strength else None
        fields = {} if config is None else config.to_request()
        return Sequence(prompt, fields, config, state=None if config is None else Penalised())

    def _new_policy(self, prompt):
        rng = self.rng
        names = ("thinking", "answer", "code", "tool_call", "table")
        presets = ("paper", "guarded", "failsafe", "sglang", "none")
        fields = {"lz_" + name: rng.choice(presets) for name in names if rng.random() < 0.7}
        fields |= {"lz_preset": "guarded", "lz_gate_low": 0.1, "lz_gate_high": 0.9}  # of the other sections
        fields |= {
            "lz_penalty": 0.5,
            "lz_window_size": 40,
            "lz_buffer_size": 9,
            "lz_loop_window": rng.randint(20, REACH),
            "lz_gate_window": rng.randint(8, 30),
        }
        fields |= {"lz_include_prompt": rng.random() < 0.5, "lz_exempt_token_ids": [rng.randrange(30)]}
        fields |= {"lz_shadow": rng.random() < 0.5, "lz_stop_copies": 20}
        if self.server.default is not None:  # its sections differ in their exempt ids
            fields = {"lz_shadow": rng.random() < 0.5, "lz_code": rng.choice(("paper", "none")), "lz_window_size": 40}
        asked = settings_from_request(fields, self.server.default)
        generation = RandomGeneration(shadow=asked.shadow)
        return Sequence(prompt, fields, None, asked.policy.configs, state=Penalised(generation=generation))

    def _leave(self):
        one = self.running.pop(self.rng.randrange(len(self.running)))
        self.free.append(one.slot)
        if self.rng.random() < 0.5:
            self.retracted.append(one)

    def _forward(self, arriving, decoding, chunks=()):
        """A step as the plug-in sees it: prefills first, each with all its tokens as inputs, then one token per row."""
        rows = [*chunks, *arriving, *decoding]
        loads = [
            (one.state, one.fields, one.slot, one.tokens, len(one.prompt)) for one in arriving if one.state is not None
        ]
        if loads:
            with nothing_waits():
                self.history.load(loads)
        inputs, newest_at = [], []
        for one in rows:
            inputs += one.tokens[-1:] if one in decoding else one.tokens[: one.prefilled if one in chunks else None]
            newest_at.append(len(inputs) - 1 if one in decoding else -1)
        states = [None if one in chunks else one.state for one in rows]
        lengths = np.array([one.prefilled if one in chunks else one.length for one in rows])
        batch = SimpleNamespace(
            input_ids=torch.tensor(inputs, device=DEVICE),
            seq_lens=torch.tensor(lengths, device=DEVICE),
            req_pool_indices=torch.tensor([one.slot for one in rows], device=DEVICE),
        )
        before = torch.randn(len(rows), self.vocab, generator=self.random) / 4
        after = before.to(DEVICE, copy=True)
        if any(states):
            with nothing_waits():
                decodes_alone = not arriving and not chunks
                step = self.history.step(states, lengths, None if decodes_alone else np.array(newest_at))
                for one, state in zip(rows, states, strict=True):
                    if one.configs is not None and state is not None:
                        one.turn(self.rng, self.vocab)
                self.history.apply(step, after, batch)
        after = after.cpu()
        for row, one in enumerate(rows):
            if one in chunks:
                assert torch.equal(before[row], after[row]), "a chunk that is not the last was penalised"
                continue
            self._check(one, before[row], after[row])
            self._append(one)

    def _check(self, one, before, after):
        generation = one.state and one.state.generation
        self.partly_open += is_partly_open(one.prompt, one.output, one.config)
        if generation and generation.shadow:
            assert torch.equal(before, after)
            self._check_shadow(one, before)
        elif generation and generation.forced is not None:
            assert after.argmax() == generation.forced
            assert after.softmax(0).max() == 1
        elif one.config is None:
            assert torch.equal(before, after)
        else:
            check_row(before, after, one.prompt, one.output, one.config, SPECIAL)

    def _check_shadow(self, one, before):
        penalised, differs = before, one.state.generation.would_differ()
        if one.config is not None:
            context = (one.prompt if one.config.include_prompt else []) + one.output
            exempt = {"exempt_token_ids": (*one.config.exempt_token_ids, *SPECIAL)}
            settings = settings_of(one.config) | exempt
            penalised = torch.tensor(
                reference.penalise(before.tolist(), context, strength=one.config.strength, **settings)
            )
        assert differs == (before.argmax() != penalised.argmax())
        self.differed += differs

    def _append(self, one):
        rng, output = self.rng, one.output
        output.append(output[-rng.randint(1, 4)] if len(output) > 4 and rng.random() < 0.7 else rng.randrange(30))
