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
from lz_penalty.engines.vllm import LZPenaltyLogitsProcessor
from lz_penalty.engines.vllm import _startup as startup
from lz_penalty.engines.vllm._counting import EVERY, V2Loops
from lz_penalty.engines.vllm._registry import GenerationRegistry
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


@pytest.mark.parametrize("sees_all", [True, False], ids=["not sharded after all", "sharded"])
def test_loops_of_all_ranks(monkeypatch, sees_all):
    """A rank may read all slots or only those that it samples. In both cases each slot is counted once."""
    states = SimpleNamespace(
        max_num_reqs=SLOTS,
        total_len=SimpleNamespace(gpu=torch.full((SLOTS,), 60, dtype=torch.int32)),
        all_token_ids=SimpleNamespace(gpu=torch.tensor([[3, 4, 5] * 20] * SLOTS, dtype=torch.int32)),
        prompt_len=SimpleNamespace(np=np.zeros(SLOTS, dtype=np.int32)),
    )
    met = []
    for rank in range(RANKS):
        reader = V2Loops(states, 0, slots_of(rank, monkeypatch))
        seen = np.arange(SLOTS) if sees_all else np.arange(SLOTS)[np.arange(SLOTS) % RANKS == rank]
        ctx = SimpleNamespace(idx_mapping=torch.from_numpy(seen), idx_mapping_np=seen)
        for _ in range(2 * EVERY):
            reader.step(ctx, np.ones(SLOTS, dtype=bool))
        met.append(reader.counts.found["lz_loops_seen"])
    assert sum(met) == SLOTS
    assert min(met) > 0


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
