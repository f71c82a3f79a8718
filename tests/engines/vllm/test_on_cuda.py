"""An engine on a GPU whose host is ahead of the device, compared with the reference at every step. See `on_cuda`."""

import pytest
import torch

from tests.engines.vllm.test_no_wait import ENVIRONMENT, WAITS
from tests.support.processes import run_task

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

NEED_NO_LISTS = ["none", "paper", "guarded", "guarded"]
BLOCKS = 30  # of 16 tokens, so that requests are preempted


def engine(kinds, env=None):
    task = {"seed": 3, "kinds": kinds, "count": 40, "blocks": BLOCKS}
    return run_task("tests.engines.vllm.on_cuda", task, ENVIRONMENT | (env or {}))


def test_the_host_does_not_wait():
    found = engine(NEED_NO_LISTS)
    print(found)
    assert found["late"] > 0.95 * found["steps"] > 200
    assert found["ahead"] > 0.5 * found["steps"]
    assert found["in C"] > 20
    assert found["waits"] == 0


def test_an_engine_that_waits_is_noticed():
    found = engine(NEED_NO_LISTS, WAITS)
    print(found)
    assert found["late"] == 0
    assert found["waits"] > 0.5 * found["steps"]


def test_requests_that_need_the_lists_come_and_go():
    found = engine([*NEED_NO_LISTS * 4, "presence"])
    print(found)
    assert 0 < found["waits"] < found["steps"]
    assert 50 < found["late"] < found["steps"]
