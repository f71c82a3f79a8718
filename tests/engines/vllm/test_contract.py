"""The V1 contract: random batches in vLLM's own `InputBatch`, compared with the reference at every step. See `batches`."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from vllm.v1.worker.gpu_input_batch import InputBatch

from lz_penalty import LZPenaltyError
from lz_penalty.engines import _device as device
from lz_penalty.engines import _requests as settings_module
from lz_penalty.engines.vllm import LZPenaltyLogitsProcessor
from lz_penalty.engines.vllm import _late_repair as late_repair
from lz_penalty.engines.vllm import _staging as staging
from lz_penalty.engines.vllm import _v1 as batch_state
from lz_penalty.engines.vllm._no_wait import DeviceTokens
from lz_penalty.engines.vllm._startup import special_tokens_of
from tests.engines.vllm import batches
from tests.engines.vllm.batches import REACH, VOCAB, Simulation, engine_config
from tests.engines.vllm.kinds import record_kinds


@pytest.fixture(scope="module")
def vllm_config():
    return engine_config()


@pytest.mark.parametrize(
    ("asynchronous", "waits"),
    [(False, True), (True, True), (True, False)],
    ids=["synchronous", "asynchronous", "without waiting"],
)
@pytest.mark.parametrize("compiled", [True, False], ids=["C", "Python"])
@pytest.mark.parametrize("seed", range(4))
def test_random_batches(vllm_config, monkeypatch, seed, asynchronous, waits, compiled):
    if not compiled:
        monkeypatch.setattr(batch_state, "newest_reader", lambda *given: None)
        monkeypatch.setattr(late_repair, "functions", lambda: None)
    monkeypatch.setattr(settings_module, "SLACK", 3)  # so that histories outgrow their slots
    monkeypatch.setattr(settings_module.SettingsReader, "longest_reach", REACH)
    simulation = Simulation(vllm_config, seed, asynchronous, waits=waits)
    for _ in range(150):
        simulation.step()
    assert simulation.partly_open > 20
    assert simulation.mixed > 20
    assert simulation.late > 40 or waits


@pytest.mark.parametrize("compiled", [True, False], ids=["C", "Python"])
def test_nothing_waits_for_tokens_that_nobody_needs(vllm_config, monkeypatch, compiled):
    """Only vLLM's own penalties need them here: no history outgrows its slot, and no token is taken back."""
    if not compiled:
        monkeypatch.setattr(late_repair, "functions", lambda: None)
    monkeypatch.setattr(Simulation, "_take_back", lambda self: None)
    simulation = Simulation(vllm_config, 0, asynchronous=True, waits=False)
    waited, calm = 0, 0
    for _ in range(300):
        previous = simulation.arrivals[-1:]
        before = [arrival.waits for arrival in previous]
        simulation.step()
        waits = [arrival.waits for arrival in previous] != before
        assert not waits or not simulation.batch.no_penalties
        waited += waits
        calm += not waits and simulation.batch.no_penalties and len(simulation.running) > 1
    assert waited > 20
    assert calm > 100


@pytest.mark.parametrize("wrong", ["rows that have moved are not found", "placeholders are not replaced"])
def test_wrong_tokens_would_be_noticed(vllm_config, monkeypatch, wrong):
    batch_changed = DeviceTokens._batch_changed

    def not_moved(self, batch):
        repair = batch_changed(self, batch)
        repair.sources[:] = self._in_place
        return repair

    if wrong == "rows that have moved are not found":
        monkeypatch.setattr(DeviceTokens, "_batch_changed", not_moved)
    else:
        monkeypatch.setattr(late_repair.LateRepair, "repair", late_repair.LateRepair.forget)

    def run():
        simulation = Simulation(vllm_config, 0, asynchronous=True, waits=False)
        for _ in range(150):
            simulation.step()

    with pytest.raises(AssertionError):  # the lists are wrong, or the logits
        run()


def test_histories_that_are_too_short_for_a_gate_would_be_noticed(vllm_config, monkeypatch):
    reach_of = settings_module.reach_of
    monkeypatch.setattr(settings_module, "SLACK", 3)
    monkeypatch.setattr(settings_module.SettingsReader, "longest_reach", REACH)
    monkeypatch.setattr(
        settings_module, "reach_of", lambda config: reach_of(replace(config, gate_low=None, gate_high=None))
    )

    def run():
        simulation = Simulation(vllm_config, 0, asynchronous=False)
        for _ in range(150):
            simulation.step()

    with pytest.raises(AssertionError, match="reference"):
        run()


def test_fields_that_are_copied(vllm_config, monkeypatch):
    """Memory cannot be pinned for some GPUs. Then kernels read a copy, and none may start before the copy is complete."""
    monkeypatch.setattr(staging, "_reads_host_memory", lambda device: False)
    monkeypatch.setattr(staging, "pins", lambda device: False)
    monkeypatch.setattr(batches, "nothing_waits", nullcontext)
    monkeypatch.setattr(settings_module, "SLACK", 3)
    monkeypatch.setattr(settings_module.SettingsReader, "longest_reach", REACH)
    aheads = []
    prepare = batch_state.prepare_lz_penalty
    monkeypatch.setattr(
        batch_state, "prepare_lz_penalty", lambda *given, ahead, **more: aheads.append(ahead) or prepare(*given, **more)
    )
    simulation = Simulation(vllm_config, 0, asynchronous=False)
    monkeypatch.setattr(device._host, "pins", False)
    for _ in range(150):
        simulation.step()
    assert aheads
    assert not any(aheads)


def test_what_is_compiled_at_the_start_is_what_steps_need(vllm_config, monkeypatch):
    at_start, in_steps = record_kinds(batch_state, monkeypatch.setattr)
    simulation = Simulation(vllm_config, 0, asynchronous=False)
    for _ in range(20):
        simulation.step()
    assert in_steps == at_start != set()


def test_an_unknown_kind_of_device_is_refused(vllm_config):
    with pytest.raises(LZPenaltyError, match="xpu"):
        LZPenaltyLogitsProcessor(vllm_config, torch.device("xpu"), False)


def test_placeholders_are_never_penalised(vllm_config, monkeypatch):
    """If vLLM does not replace the placeholders, as for a processor that it does not know, the processor raises."""
    monkeypatch.setattr(InputBatch, "update_async_output_token_ids", lambda self: None)
    monkeypatch.setattr(Simulation, "_check", lambda self: self._penalised(torch.zeros(len(self.running), VOCAB)))
    simulation = Simulation(vllm_config, 0, asynchronous=True)

    def run():
        for _ in range(150):
            simulation.step()

    with pytest.raises(LZPenaltyError, match="placeholder"):
        run()


def test_the_bundled_model_has_its_special_tokens_exempt(vllm_config, special):
    assert special_tokens_of(vllm_config.model_config) == special
