"""The benchmark without the penalty in every second block of steps finds the time that was added to the other steps."""

import numpy as np
import pytest

from benchmarks.blocks import BLOCK, in_blocks, settled

STEPS = 20 * BLOCK
ARRIVAL = np.eye(1, STEPS + 1, dtype=int)[0]  # at the first step


def begins(steps_us):
    return np.concatenate([[0], np.cumsum(np.asarray(steps_us) * 1e3)]).astype(np.int64)


def step_times(added_us, drift_us=0.5):
    """In microseconds: the penalty is in the blocks 0, 2, ...; texts grow, and with them all steps."""
    at = np.arange(STEPS)
    return 6000 + drift_us * at + added_us * (at // BLOCK % 2 == 0)


@pytest.mark.parametrize("added_us", [0, 6, -3])
def test_what_was_added_is_found(added_us):
    steps = step_times(added_us)
    steps[::BLOCK] += 3000  # what is made up for
    found = in_blocks(begins(steps), ARRIVAL)
    assert found["added_us"] == pytest.approx([added_us] * 9, abs=0.1)
    assert (found["step_ms"] - found["without_ms"]) * 1e3 == pytest.approx(added_us, abs=0.01)
    assert found["without_ms"] == pytest.approx(6.0 + 0.5e-3 * STEPS / 2, rel=0.01)


def test_a_pause_of_the_machine_does_not_count():
    steps = step_times(6)
    steps[5 * BLOCK : 6 * BLOCK] += 500
    found = in_blocks(begins(steps), ARRIVAL)
    assert min(found["added_us"]) < -200
    assert (found["step_ms"] - found["without_ms"]) * 1e3 == pytest.approx(6, abs=0.01)


def test_only_the_longest_time_in_which_nobody_comes_or_goes():
    changed = np.zeros(STEPS + 101, int)
    changed[[0, 40, 100]] = 1
    found = in_blocks(begins([20_000] * 100 + list(step_times(6))), changed)
    assert found["added_us"] == pytest.approx([6] * 9, abs=0.1)


def test_settled_steps_come_after_calm_ones():
    calm = np.array([1, 1, 1, 1, 1, 0, 1, 1, 1, 1], bool)
    assert np.flatnonzero(settled(calm)).tolist() == [3, 4, 9]
