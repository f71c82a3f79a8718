"""The V1 contract for requests with a policy: random batches as in test_contract.py, compared with `policy_truth`."""

import itertools
from collections import Counter
from dataclasses import replace

import pytest
import torch
from vllm import SamplingParams
from vllm.sampling_params import RepetitionDetectionParams, StructuredOutputsParams
from vllm.v1.worker.gpu_input_batch import CachedRequestState

from lz_penalty.engines import _requests as settings_module
from lz_penalty.engines._device import force_
from lz_penalty.engines._requests import SettingsReader
from lz_penalty.engines.server import ServerSettings
from lz_penalty.engines.vllm import LZPenaltyLogitsProcessor
from lz_penalty.engines.vllm import _ending as ending
from lz_penalty.engines.vllm import _late_repair as late_repair
from lz_penalty.engines.vllm import _processor as processor
from lz_penalty.engines.vllm import _v1 as batch_state
from lz_penalty.engines.vllm._ending import Ending
from lz_penalty.engines.vllm._registry import GenerationRegistry
from lz_penalty.policy import SECTIONS, Policy, RequestPolicy, counters
from tests.engines.vllm.batches import VOCAB, Simulation
from tests.engines.vllm.test_contract import vllm_config  # noqa: F401
from tests.support.policy_truth import Truth
from tests.support.requests_and_truth import is_partly_open
from tests.support.settings import UNGATED

EOS = 0
STOP = {"lz_stop_copies": 6}
TEXTS = (
    "\n```\n",
    "<think>",
    "<think>",
    "</think>\n",
    "\n| a |",
    "\n<tool_call>",
    "</tool_call>",
    '\n{"a": 1',
    "\n",
    " the sea",
    " man",
)
SIZES = {"lz_window_size": 40, "lz_loop_window": 80, "lz_gate_window": 20}  # so that histories outgrow their slots
REACH = 92  # a gate window of 20, a window of 40, and a buffer of 32
DEFAULT = {"lz_policy": "default", **SIZES}
GATED = {"lz_preset": "guarded", "lz_penalty": 2, "lz_gate_low": 0.1, "lz_gate_high": 0.9, **SIZES}
FIELDS = (
    DEFAULT,
    DEFAULT | {"lz_penalty": 2, "lz_include_prompt": 1},
    GATED | {"lz_thinking": "paper", "lz_code": "none", "lz_exempt_token_ids": [5, 300], "lz_include_prompt": 1},
    DEFAULT | {"lz_end_thinking_copies": 3, "lz_stop_copies": 20},
    {"lz_thinking": "failsafe", "lz_end_thinking_copies": 3, **SIZES},
    STOP,
    DEFAULT | {"lz_penalty": 3, "lz_stop_copies": 5, "lz_shadow": 1},
    {"lz_preset": "paper", "lz_penalty": 3, "lz_shadow": True, **SIZES},
    GATED,
    {},
)
# In all sections but tables the line is not zero, but nothing is to be computed.
NOTHING_TO_COMPUTE = (
    {"lz_preset": "failsafe", "lz_escalation": 0, "lz_table": "guarded", "lz_penalty": 1, "lz_gate_window": 20},
)


class PolicySimulation(Simulation):
    """Requests with policies beside others; the tokens open and close all kinds of sections."""

    def __init__(self, vllm_config, seed, asynchronous, tokenizer, waits=True):  # noqa: F811
        super().__init__(vllm_config, seed, asynchronous, waits=waits)
        self.known = Truth(tokenizer, self.special)
        self.texts = [tokenizer(text).input_ids for text in TEXTS]
        self.begun: dict[int, list[int]] = {}  # what is left to write of a text, by output
        self.came_with: dict[str, int] = {}
        self.changed: dict[str, list[bool]] = {}  # in shadow mode, since the request came
        self.expected = {"lz_shadow_steps": 0, "lz_shadow_changed": 0}
        self.met = set()
        self.fields = FIELDS

    def _new(self):
        self.count += 1
        name, fields = f"request {self.count}", self.rng.choice(self.fields)
        self.configs[name] = processor.server_settings().settings_of(fields)
        self.truth[name] = []
        return CachedRequestState(
            req_id=name,
            prompt_token_ids=[
                token for text in self.rng.choices(self.texts, k=self.rng.randint(1, 20)) for token in text
            ],
            mm_features=[],
            sampling_params=SamplingParams(extra_args=fields, temperature=0, min_tokens=3),
            generator=None,
            block_ids=([],),
            num_computed_tokens=0,
            output_token_ids=[],
        )

    def _leave(self):
        before = set(self.running)
        super()._leave()
        for name in before - set(self.running):
            self._left(name)

    def _left(self, name):
        self.came_with.pop(name, None)
        flags = self.changed.pop(name, [])
        self.expected["lz_shadow_steps"] += len(flags)
        self.expected["lz_shadow_changed"] += sum(flags)

    def _check(self):
        before = torch.randn(len(self.running), VOCAB)
        for row, name in enumerate(self.batch.req_ids):  # so that the penalty matters
            before[row, self.truth[name][-4:]] += 5
        after = self._penalised(before)
        for row, name in enumerate(self.batch.req_ids):
            self._check_row(name, before[row], after[row])

    def _check_row(self, name, before, after):
        prompt, output, asked = self.running[name].prompt_token_ids, self.truth[name], self.configs[name]
        self.partly_open += is_partly_open(prompt, output, self.known.step(asked, prompt, output).config)
        self.met.add(self.known.check_row(before, after, prompt, output, asked, EOS))
        if len(output) == self.came_with.setdefault(name, len(output)):
            self.changed[name] = []
        if isinstance(asked, RequestPolicy) and asked.shadow:
            self.changed[name].append(self.known.would_change(before, prompt, output, asked))

    def _token(self, output):
        """Texts that open and close sections, and runs of one to three tokens."""
        left, period = self.begun.setdefault(id(output), []), 1 + len(output) // 40 % 3
        if not left and len(output) > 4 and self.rng.random() < 0.92:
            return output[-period]
        if not left:
            left += self.rng.choice(self.texts)
        return left.pop(0)


@pytest.mark.parametrize(
    ("asynchronous", "waits"),
    [(False, True), (True, True), (True, False)],
    ids=["synchronous", "asynchronous", "without waiting"],
)
@pytest.mark.parametrize("compiled", [True, False], ids=["C", "Python"])
@pytest.mark.parametrize("seed", range(2))
def test_random_batches(vllm_config, tokenizer, monkeypatch, seed, asynchronous, waits, compiled):  # noqa: F811
    if not compiled:
        monkeypatch.setattr(batch_state, "newest_reader", lambda *given: None)
        monkeypatch.setattr(late_repair, "functions", lambda: None)
    monkeypatch.setattr(settings_module, "SLACK", 3)
    monkeypatch.setattr(settings_module.SettingsReader, "longest_reach", REACH)
    simulation = PolicySimulation(vllm_config, seed, asynchronous, tokenizer, waits)
    before = counters.totals()
    for _ in range(300):
        simulation.step()
    for name in list(simulation.running):
        simulation.running.pop(name)
        simulation.batch.remove_request(name)
        simulation._left(name)
    simulation.batch.refresh_metadata()
    assert simulation.met == {*SECTIONS, "none", "forced", "stopped"}
    assert simulation.expected["lz_shadow_changed"] > 0
    assert simulation.partly_open > 20
    counted = {name: number - before[name] for name, number in counters.totals().items()}
    assert counted | simulation.expected == counted
    assert counted["lz_stopped"] > 0


@pytest.mark.parametrize("seed", range(3))
def test_policies_come_and_go(vllm_config, tokenizer, monkeypatch, seed):  # noqa: F811
    """Only steps with a policy wait for their tokens. The other requests of the batch are exact in both kinds of steps."""
    monkeypatch.setattr(PolicySimulation, "_take_back", lambda self: None)
    simulation = PolicySimulation(vllm_config, seed, True, tokenizer, waits=False)
    simulation.fields = (*[GATED] * 8, {}, DEFAULT, STOP)
    steps = Counter()
    for _ in range(200):
        previous = simulation.arrivals[-1:]
        before = [arrival.waits for arrival in previous]
        simulation.step()
        policies = any(isinstance(simulation.configs[name], RequestPolicy) for name in simulation.running)
        steps[policies, [arrival.waits for arrival in previous] != before] += 1
    assert steps[True, True] > 20
    assert steps[False, False] > 20
    assert not steps[False, True]


@pytest.mark.parametrize("fields", [FIELDS, NOTHING_TO_COMPUTE], ids=["all", "nothing to compute"])
def test_alone(vllm_config, tokenizer, monkeypatch, fields):  # noqa: F811
    """Where nothing else is in the batch, all tokens are stored in sections without a penalty, and the op stays prepared."""
    calls: list[str] = []
    note_calls(monkeypatch, batch_state, "prepare_lz_penalty", calls)
    note_calls(monkeypatch, batch_state.V1State, "update", calls)
    simulation = PolicySimulation(vllm_config, 0, False, tokenizer)
    simulation.most_rows, simulation.fields = 1, fields
    for _ in range(600):
        simulation.step()
    assert {*SECTIONS} <= simulation.met
    assert "prepare_lz_penalty" in calls
    assert all(pair != ("prepare_lz_penalty",) * 2 for pair in itertools.pairwise(calls))


def test_sections_with_exempt_ids_of_their_own(vllm_config, tokenizer, monkeypatch):  # noqa: F811
    runs = {token for text in TEXTS for token in tokenizer(text).input_ids}
    parts = [tuple(sorted(runs)[i :: len(SECTIONS)]) for i in range(len(SECTIONS))]
    configs = {
        name: replace(UNGATED, strength=2, window_size=40, loop_window=80, exempt_token_ids=ids)
        for name, ids in zip(SECTIONS, parts, strict=True)
    }
    server = ServerSettings(default=RequestPolicy(policy=Policy(**configs)))
    monkeypatch.setattr(processor, "server_settings", lambda: server)
    simulation = PolicySimulation(vllm_config, 0, False, tokenizer)
    simulation.fields = ({}, {"lz_code": "guarded"}, {"lz_table": "none", "lz_answer": "paper"}, {"lz_penalty": 0})
    for _ in range(300):
        simulation.step()
    assert {*SECTIONS} <= simulation.met


def note_calls(monkeypatch, owner, name, calls):
    """Add the name to a list with every call."""
    called = getattr(owner, name)

    def noting(*args, **kwargs):
        calls.append(name)
        return called(*args, **kwargs)

    monkeypatch.setattr(owner, name, noting)


@pytest.fixture
def in_one_process(vllm_config):  # noqa: F811
    """Follows a request where worker and scheduler share its parameters."""
    registry = GenerationRegistry(vllm_config, counted=range(0))
    registry.shares_params = True

    def follow(params):
        settings = SettingsReader(ServerSettings(), (), 1, torch.device("cpu")).read(params.extra_args, 0)
        return registry.start(settings, params, [1, 2, 3], 0)

    return follow


def arrived(params):
    """The copy of a caller's parameters that vLLM makes when a request arrives."""
    LZPenaltyLogitsProcessor.validate_params(params)
    copy = params.clone()
    copy.update_from_generation_config({}, EOS)
    return copy


def test_an_end_that_vllm_does_not_find(in_one_process):
    """The run goes on for some tokens, as vLLM's detection is told to expect; then only EOS is left."""
    params = SamplingParams(min_tokens=50, max_tokens=90, extra_args=STOP)
    generation = in_one_process(params)
    output = [9, 8, 7, 1, *[4, 5, 6] * 6][:-1]  # the token that comes now completes the last copy
    generation.read(output[:-1])
    assert generation.forced is None
    generation.read(output)
    assert params.repetition_detection == RepetitionDetectionParams(3, 3, 6)
    assert params.min_tokens == 0
    forced = []
    for _ in range(10):
        forced.append(generation.forced)
        output.append(generation.forced)
        generation.read(output)
    assert forced == [6, 4, 5, 6, 4, 5, 6, 4, EOS, EOS]


def test_looking_at_drafts_keeps_nothing(in_one_process):
    """Drafts that would use up the patience with vLLM's detection are not kept, so the run is still how it ends."""
    generation = in_one_process(SamplingParams(max_tokens=90, extra_args=STOP))
    generation.read([9, 8, 7, 1, *[4, 5, 6] * 6][:-1])
    after = generation.after_drafts([6, 4, 5] * 4)
    assert [token for _, token in after] == [6, 4, 5, 6, 4, 5, 6, 4, *[EOS] * 5]
    assert generation.after_drafts([])[0][1] == generation.forced == 6
    assert not generation.overrides_masks


def test_shared_parameters_are_left_alone(in_one_process, monkeypatch):
    """Requests with `n` > 1 and no seed share them in the process of the engine."""
    for n, seed, in_process in ((4, None, True), (4, 7, True), (1, None, True), (4, None, False)):
        monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0" if in_process else "1")
        params = arrived(SamplingParams(n=n, seed=seed, temperature=0.5, min_tokens=5, max_tokens=90, extra_args=STOP))
        generation = in_one_process(params)
        generation.read([9, 8, 7, 1, *[4, 5, 6] * 6])
        shared = n > 1 and seed is None and in_process
        assert generation.forced == (EOS if shared else 4)
        assert (params.repetition_detection, params.min_tokens) == (
            (None, 5) if shared else (RepetitionDetectionParams(3, 3, 6), 0)
        )


def test_tokens_that_the_model_does_not_know(vllm_config, tokenizer, monkeypatch):  # noqa: F811
    """A tokenizer may write an end-of-thinking marker with one, a request may name one as its stop token."""
    assert GenerationRegistry(vllm_config, counted=range(0)).reading.closers
    (close,) = tokenizer("</think>").input_ids
    monkeypatch.setattr(type(vllm_config.model_config), "get_vocab_size", lambda self: close)
    assert not GenerationRegistry(vllm_config, counted=range(0)).reading.closers
    logits = torch.randn(2, VOCAB)
    for token in (VOCAB, 10**9, -1):
        for masks in ("obeyed", "overridden", "to come"):
            after = logits.clone()
            force_(after, 1, token, masks)
            assert torch.equal(after, logits)


def test_what_is_prepared_for_an_end(monkeypatch):
    """A row of EOS must be found before `min_tokens`; a grammar may not know of a reserved token, but allows EOS."""
    json = StructuredOutputsParams(json={"type": "object"})

    def prepared(**given):
        params = arrived(SamplingParams(max_tokens=90, extra_args=STOP, **given))
        return params, Ending(params, False, EOS).token(None, 0)

    params, token = prepared(ignore_eos=True, min_tokens=50)
    assert (params.repetition_detection, params.min_tokens, token) == (RepetitionDetectionParams(1, 1, 16), 0, EOS)
    assert prepared(ignore_eos=True, min_tokens=50, stop="x")[0].min_tokens == 50
    assert prepared(min_tokens=50)[0].min_tokens == 50
    reserved = ServerSettings(stop_token_id=3)
    for module in (ending, processor):
        monkeypatch.setattr(module, "server_settings", lambda: reserved)
    params, token = prepared(ignore_eos=True, min_tokens=50)
    assert (params.repetition_detection, params.stop_token_ids, token) == (None, [3], 3)
    params, token = prepared(structured_outputs=json)
    assert (params.stop_token_ids, token) == ([], EOS)
