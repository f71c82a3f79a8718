"""Engines whose newest tokens are on the device: exact in every row of every step. See `forced_async`."""

import pytest

from tests.engines.vllm.forced_async import KINDS
from tests.support.processes import run_task

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # so that the patches of `forced_async` hold in the engine
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "LZ_PENALTY_SERVER": '{"wait_for_tokens": false}',
}
MIXED = [*["paper", "guarded"] * 6, *KINDS]  # few requests need the lists
WAITS = {"LZ_PENALTY_SERVER": '{"wait_for_tokens": true}'}
SEEDS = {True: 1, False: 2}


def engine(kinds, compiled=True, env=None):
    task = {"seed": SEEDS[compiled], "compiled": compiled, "kinds": kinds, "count": 40}
    return run_task("tests.engines.vllm.forced_async", task, ENVIRONMENT | (env or {}))


@pytest.mark.parametrize("compiled", [True, False], ids=["C", "Python"])
def test_an_engine_that_does_not_wait_writes_the_same_tokens(compiled):
    """Chunked prefill, moves, preemptions, aborts, histories that outgrow their slots, and requests that need the lists."""
    found = engine(MIXED, compiled)
    waited = engine(MIXED, compiled, WAITS)
    assert found["outputs"] == waited["outputs"]
    assert found["preemptions"] > 0
    assert 50 < found["late"] < found["steps"]
    assert waited["late"] == 0
    assert waited["steps"] == found["steps"]


def test_requests_that_need_no_lists():
    found = engine(["none", "paper", "guarded"])
    assert found["preemptions"] > 0
    assert found["late"] > 0.95 * found["steps"] > 200
