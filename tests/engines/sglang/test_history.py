"""Random batches on the histories alone: see `slot_histories`. SGLang is not needed."""

from dataclasses import replace

import pytest

from lz_penalty.engines import _requests as request_settings
from lz_penalty.engines.server import ServerSettings
from lz_penalty.engines.sglang._history import History
from lz_penalty.policy import SECTIONS, Ladder, Policy, RequestPolicy
from tests.support.settings import UNGATED
from tests.support.slot_histories import Simulation, small_slots


@pytest.mark.parametrize("seed", range(8))
def test_random_batches(seed):
    with small_slots():
        simulation = Simulation(seed)
        for _ in range(150):
            simulation.step()
    assert simulation.partly_open > 20


def test_policies():
    """Requests with a policy; in shadow mode some penalties would change a token."""
    simulation = Simulation(0, policies=1)
    for _ in range(300):
        simulation.step()
    assert simulation.differed > 10
    assert simulation.partly_open > 10


def test_sections_with_exempt_ids_of_their_own():
    configs = {
        name: replace(UNGATED, strength=0.5, loop_window=80, exempt_token_ids=range(4 * i, 4 * i + 5))
        for i, name in enumerate(SECTIONS)
    }
    configs["answer"] = replace(configs["answer"], gate_low=0.3, gate_high=0.9, gate_window=30)
    default = RequestPolicy(policy=Policy(**configs), ladder=Ladder(stop_copies=20))
    simulation = Simulation(0, policies=1, server=ServerSettings(default=default))
    for _ in range(400):
        simulation.step()
    assert simulation.differed > 10
    assert simulation.partly_open > 10


def test_histories_that_are_too_short_for_a_gate_would_be_noticed(monkeypatch):
    """By the batches of `test_random_batches`, though not by each."""
    reach_of = request_settings.reach_of
    monkeypatch.setattr(
        request_settings, "reach_of", lambda config: reach_of(replace(config, gate_low=None, gate_high=None))
    )

    def run():
        for seed in range(8):
            simulation = Simulation(seed)
            for _ in range(150):
                simulation.step()

    with small_slots(), pytest.raises(AssertionError, match="reference"):
        run()


def test_a_late_token_would_be_noticed(monkeypatch):
    """The check fails with the inputs of the step before, as under overlap scheduling on the host."""
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
