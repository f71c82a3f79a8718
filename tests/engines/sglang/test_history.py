"""Random batches on the histories alone: see `slot_histories`. SGLang is not needed."""

import pytest

from lz_penalty import LZPenaltyConfig
from lz_penalty.engines.server import ServerSettings
from lz_penalty.engines.sglang._history import History
from lz_penalty.policy import SECTIONS, Ladder, Policy, RequestPolicy
from tests.support.slot_histories import Simulation, small_slots


@pytest.mark.parametrize("seed", range(8))
def test_random_batches(seed):
    with small_slots():
        simulation = Simulation(seed)
        for _ in range(150):
            simulation.step()


def test_policies():
    """Requests with a policy; in shadow mode some penalties would change a token."""
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
    for _ in range(400):
        simulation.step()
    assert simulation.differed > 10


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
