"""When a prepared op is one launch, when two, and when C can have them; the launches themselves are in test_cuda.py."""

from types import SimpleNamespace

import pytest
import torch

from lz_penalty.kernels import triton_cuda
from lz_penalty.kernels.cuda_launch import may_start_early

CONSTANTS = {"EXEMPT_STEPS": 0, "LOOP_BLOCK": 0, "LOWEST": -1.0, "BLOCK": 16}
LOGITS = torch.zeros(3, 8)
ARGUMENTS = (LOGITS, 8, 1, 8, 3.0, "history", "table")
TWO = ["find_kernel", "lower_kernel"]


@pytest.fixture
def launched(monkeypatch):
    """The kernels that were launched; the driver takes those whose names are not in `refused`."""
    log, refused = [], set()

    class Launch:
        def __init__(self, kernel, grid, constants, warps, kinds, patience=2):
            self.name, self.patience, self.calls = kernel.__name__, patience, 0
            self.direct, self.refused = None, False
            assert grid == (3, 1, 1)
            assert ("LOWEST" in constants) == (self.name != "find_kernel")
            assert ("EARLY" in constants) == (self.name == "lower_kernel")

        def __call__(self, arguments):
            log.append(self.name)
            self.calls += 1
            self.arguments = arguments
            if self.calls == self.patience:
                self.refused = self.name in refused
                self.direct = None if self.refused else self.name

    monkeypatch.setattr(triton_cuda, "_Launch", Launch)
    monkeypatch.setattr(triton_cuda, "LaunchAhead", lambda *given: given)
    return SimpleNamespace(log=log, refused=refused)


def test_one_launch_first_then_two(launched):
    ahead = triton_cuda._Ahead(LOGITS, CONSTANTS, 1, ())
    ahead(ARGUMENTS)
    assert launched.log == ["row_kernel"]
    assert ahead.launch_ahead is None
    ahead(ARGUMENTS)
    assert launched.log == ["row_kernel", *TWO]
    find, lower, (places, changes), early = ahead.launch_ahead
    assert early == may_start_early(LOGITS.device)
    assert [find, lower] == TWO
    assert (places.shape, places.dtype) == ((3, 17), torch.int32)
    assert (changes.shape, changes.dtype) == ((3, 17), torch.float32)
    assert ahead._find.arguments == (8, 3.0, "history", "table", places, changes)
    assert ahead._lower.arguments == (LOGITS, 8, 1, places, changes)
    ahead(ARGUMENTS)  # a step in between from Python
    assert launched.log == ["row_kernel", *TWO, *TWO]
    assert ahead._find.arguments[-2] is places
    assert ahead.launch_ahead is ahead.launch_ahead


@pytest.mark.parametrize("name", TWO)
def test_where_triton_must_launch_it_stays_one(launched, name):
    launched.refused.add(name)
    ahead = triton_cuda._Ahead(LOGITS, CONSTANTS, 1, ())
    for _ in range(4):
        ahead(ARGUMENTS)
    assert launched.log == ["row_kernel", *TWO, "row_kernel", "row_kernel"]
    assert ahead.launch_ahead is None
