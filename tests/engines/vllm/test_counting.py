"""Which process counts which events; and a process pins no memory if vLLM says that it cannot."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from vllm import SamplingParams

from lz_penalty.engines import _device
from lz_penalty.engines._device import Later, send
from lz_penalty.engines._requests import SettingsReader
from lz_penalty.engines.server import ServerSettings
from lz_penalty.engines.vllm import LZPenaltyLogitsProcessor, _slot_texts
from lz_penalty.engines.vllm import _startup as startup
from lz_penalty.engines.vllm._counting import EVERY, V2Loops
from lz_penalty.engines.vllm._registry import GenerationRegistry
from lz_penalty.engines.vllm._v2 import V2State
from lz_penalty.policy import counters
from tests.engines.vllm.test_contract import vllm_config  # noqa: F401

SLOTS, RANKS = 7, 3
CUDA = torch.device("cuda")


def slots_of(rank, monkeypatch, sharded=True, v1=False):
    monkeypatch.setattr(startup, "get_tensor_model_parallel_rank", lambda: rank)
    parallel = SimpleNamespace(tensor_parallel_size=RANKS, enable_batch_sharded_sampling=sharded)
    return startup.counted_slots(parallel, SLOTS, v1)


def test_every_slot_is_counted_by_one_rank(monkeypatch):
    for sharded, v1 in ((True, False), (False, False), (False, True), (True, True)):
        ranges = [slots_of(rank, monkeypatch, sharded, v1) for rank in range(RANKS)]
        assert sorted(slot for one in ranges for slot in one) == list(range(SLOTS))
        assert all(ranges) == (sharded and not v1)
    older = SimpleNamespace(tensor_parallel_size=1)  # before vLLM had batch-sharded sampling
    assert startup.counted_slots(older, SLOTS, v1=False) == range(SLOTS)


def states_of(tokens, length):
    """Return vLLM's request states, if all slots have these tokens, and so many of them are known."""
    slots = len(tokens)
    of_slots = SimpleNamespace(np=np.zeros(slots, dtype=np.int32), gpu=torch.zeros(slots, dtype=torch.int32))
    return SimpleNamespace(
        device=torch.device("cpu"),
        max_num_reqs=slots,
        total_len=SimpleNamespace(gpu=torch.full((slots,), length, dtype=torch.int32)),
        all_token_ids=SimpleNamespace(gpu=torch.tensor(tokens, dtype=torch.int32)),
        prompt_len=of_slots,
        prefill_len=SimpleNamespace(np=np.full(slots, length, dtype=np.int32)),
    )


def part_of_step(slots, position=0):
    """Return the layout of a part of a step, with these slots."""
    rows = torch.tensor(slots)
    positions = torch.full((len(slots),), position)
    return SimpleNamespace(pos=positions, idx_mapping=rows, expanded_idx_mapping=rows, idx_mapping_np=rows.numpy())


@pytest.mark.parametrize("parts", [1, 2, 3], ids=["whole batches", "halves", "thirds"])
@pytest.mark.parametrize("sees_all", [True, False], ids=["not sharded after all", "sharded"])
def test_loops_of_all_ranks(monkeypatch, sees_all, parts):
    """A rank may read all slots or only those that it samples, and vLLM may divide a step. Each slot is counted once."""
    states, met = states_of([[3, 4, 5] * 20] * SLOTS, 60), []
    for rank in range(RANKS):
        reader = V2Loops(states, 0, slots_of(rank, monkeypatch))
        seen = [slot for slot in range(SLOTS) if sees_all or slot % RANKS == rank]
        for _ in range(2 * EVERY):
            reader.begin_step()
            for part in (seen[number::parts] for number in range(parts)):
                if part:
                    reader.look(part_of_step(part), np.ones(SLOTS, dtype=bool))
        met.append(reader.counts.found["lz_loops_seen"])
    assert sum(met) == SLOTS
    assert min(met) > 0


def test_a_divided_batch(vllm_config, monkeypatch):  # noqa: F811
    """With drafts, vLLM may penalise a large batch in parts: texts are asked for once, and nobody has left."""
    states = states_of([[3, 4, 5, 6, 7] * 10] * 2, 20)
    registry = GenerationRegistry(vllm_config, range(2))
    left, asked = [], []
    monkeypatch.setattr(registry, "note_left", lambda slot, generation: left.append((slot, generation.length)))
    newest = _slot_texts.newest_tokens
    monkeypatch.setattr(_slot_texts, "newest_tokens", lambda *given: asked.append(given) or newest(*given))
    state = V2State(SettingsReader(ServerSettings(), (), 2, states.device), states, 0, registry)
    params = SamplingParams(max_tokens=90, extra_args={"lz_preset": "failsafe", "lz_stop_copies": 20})
    for slot in range(2):
        state.add_request(slot, params)
    for length in range(20, 30):
        states.total_len.gpu.fill_(length)
        state.before_step()
        for slots in ([0], [1]):
            logits = state.apply(torch.zeros((1, 50)), part_of_step(slots, length - 1))
            assert logits.any()
    assert (left, len(asked)) == ([], 10)
    state.before_step()
    states.total_len.gpu[0] = 30
    state.apply(torch.zeros((1, 50)), part_of_step([0], 29))
    state.before_step()
    assert left == [(1, 29)]


def test_policies_of_all_ranks(vllm_config, monkeypatch):  # noqa: F811
    before = counters.totals()
    params = SamplingParams(max_tokens=90, extra_args={"lz_stop_copies": 6})
    settings = SettingsReader(ServerSettings(), (), SLOTS, torch.device("cpu"))
    for rank in range(RANKS):
        registry = GenerationRegistry(vllm_config, slots_of(rank, monkeypatch))
        for slot in range(SLOTS):
            generation = registry.start(settings.read(params.extra_args, slot), params, [1, 2], slot)
            generation.read([9, 8, 7, 1])
            generation.read([9, 8, 7, 1, *[4, 5, 6] * 6])
            registry.note_left(slot, generation)
    assert counters.totals()["lz_stopped"] - before["lz_stopped"] == SLOTS


# ---------------------------------------------------------------- pinned memory


class OnHost:
    """A tensor that records the calls of its methods."""

    device = CUDA

    def __init__(self):
        self.done = []

    def pin_memory(self):
        self.done.append("pinned")
        return self

    def to(self, device, **given):
        self.done.append((str(device), given))
        return self


def test_nothing_is_pinned_where_it_cannot_be(monkeypatch):
    event = SimpleNamespace(record=lambda: None)
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    monkeypatch.setattr(torch, "from_numpy", lambda array: OnHost())
    for pinned, sent, fetched in (
        (True, ["pinned", ("cuda", {"non_blocking": True})], ("cpu", {"non_blocking": True})),
        (False, [("cuda", {})], ("cpu", {"copy": True})),
    ):
        monkeypatch.setattr(_device._host, "pins", pinned)
        assert send(np.zeros(1), CUDA).done == sent
        later = Later(OnHost())
        assert later._copy.done == [fetched]
        assert later._done is (event if pinned else None)  # torch pins what a copy that does not wait is written to


@pytest.mark.parametrize("pinned", [True, False])
def test_what_vllm_says_of_pinned_memory_is_heard(vllm_config, monkeypatch, pinned):  # noqa: F811
    monkeypatch.setattr(_device._host, "pins", not pinned)
    LZPenaltyLogitsProcessor(vllm_config, torch.device("cpu"), pinned)
    assert _device._host.pins is pinned


@pytest.mark.parametrize("pinned", [True, False])
def test_v2_asks_vllm(monkeypatch, pinned):
    from vllm.utils import platform_utils

    monkeypatch.setattr(platform_utils, "is_pin_memory_available", lambda: pinned)
    assert startup.v2_pins_memory() is pinned
