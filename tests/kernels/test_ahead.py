"""When a prepared op is one launch or two, and when C can launch them. test_cuda.py tests the launches themselves."""

from types import SimpleNamespace

import pytest
import torch
import triton

from lz_penalty.kernels import triton as triton_cuda
from lz_penalty.kernels.triton._launch import may_start_early
from tests.support.backends import printed_with_compiler

CONSTANTS = {"GATE": False, "EXEMPT_STEPS": 0, "LOOP_BLOCK": 0, "LOWEST": -1.0, "BLOCK": 16}
LOGITS = torch.zeros(3, 8)
ARGUMENTS = (LOGITS, 8, 1, 8, 3.0, "history", "table")
TWO = ["find_kernel", "lower_kernel"]
COMPILED = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from lz_penalty.kernels.triton._kernels import lower_kernel
constants = {"logit_stride": 1, "LOOP_BLOCK": 0, "LOWEST": -1.0, "EARLY": sys.argv[1] == "True", "BLOCK": 512}
kinds = {"logits": "*fp32", "row_stride": "i32", "found_tokens": "*i32", "changes": "*fp32"}
kinds = {name: kinds.get(name, "constexpr") for name in lower_kernel.arg_names}
source = ASTSource(lower_kernel, kinds, constexprs=constants)
print(triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 16}).asm["ptx"])
"""


@pytest.fixture
def launched(monkeypatch):
    """The kernels that were launched; the driver takes those whose names are not in `refused`."""
    log, refused, compiled = [], set(), set()

    class Launch:
        def __init__(self, kernel, grid, constants, warps, kinds, patience=2):
            self.name, self.patience, self.calls = kernel.__name__, patience, 0
            self.direct, self.refused = None, False
            assert grid == (3, 1, 1)
            assert ("LOWEST" in constants) == (self.name != "find_kernel")
            self.early, self.constants = constants.get("EARLY"), constants

        @property
        def is_compiled(self):
            return (self.name, self.constants.get("SPAN")) in compiled

        def __call__(self, arguments):
            log.append(self.name)
            self.calls += 1
            compiled.add((self.name, self.constants.get("SPAN")))
            self.arguments = arguments
            if self.calls == self.patience:
                self.make_direct(arguments)

        def make_direct(self, arguments):
            self.arguments = arguments
            self.refused = self.name in refused
            self.direct = None if self.refused else self.name

    monkeypatch.setattr(triton_cuda, "_Launch", Launch)
    monkeypatch.setattr(triton_cuda, "LaunchAhead", lambda *given: given)
    return SimpleNamespace(log=log, refused=refused)


@pytest.mark.parametrize("early", [False, True])
def test_one_launch_first_then_two(launched, monkeypatch, early):
    monkeypatch.setattr(triton_cuda, "may_start_early", lambda device: early)
    ahead = triton_cuda._TwoLaunches(LOGITS, CONSTANTS, 1, ())
    ahead(ARGUMENTS)
    assert launched.log == ["row_kernel"]
    assert ahead.launch_ahead is None
    ahead(ARGUMENTS)
    assert launched.log == ["row_kernel", *TWO]
    find, lower, whole, (found_tokens, changes), launched_early = ahead.launch_ahead
    assert whole == "row_kernel"
    assert [one.early for one in (ahead._whole, ahead._find, ahead._lower)] == [None, None, early]
    assert launched_early == early
    assert [find, lower] == TWO
    assert (found_tokens.shape, found_tokens.dtype) == ((3, 17), torch.int32)
    assert (changes.shape, changes.dtype) == ((3, 17), torch.float32)
    assert ahead._find.arguments == (8, 3.0, "history", "table", None, None, None, found_tokens, changes)
    assert ahead._lower.arguments == (LOGITS, 8, 1, found_tokens, changes)
    ahead(ARGUMENTS)  # a step in between from Python
    assert launched.log == ["row_kernel", *TWO, *TWO]
    assert ahead._find.arguments[-2] is found_tokens
    assert ahead.launch_ahead is ahead.launch_ahead


def test_with_a_gate_the_whole_launch_keeps_what_find_keeps(launched):
    log = [*["row_kernel"] * 2, *TWO]  # the second one compiles the kernel that C may choose
    for _ in range(2):
        ahead = triton_cuda._TwoLaunches(LOGITS, CONSTANTS | {"GATE": True}, 1, ())
        for _ in range(3):
            ahead((*ARGUMENTS[:-2], "history", "table"))
        assert launched.log == log
        log += ["row_kernel", *TWO, *TWO]  # the next step has a compiled one
        tokens, copied, about = ahead._find.arguments[-5:-2]
        assert tokens.shape == copied.shape == (3, 32)
        assert all(one is kept for one, kept in zip(ahead._whole.arguments[-3:], (tokens, copied, about), strict=True))
        assert ahead._first.arguments[-3:] == (None, None, None)
        assert ahead.launch_ahead is not None


@pytest.mark.parametrize("name", [*TWO, "row_kernel"])
def test_where_triton_must_launch_it_stays_one(launched, name):
    launched.refused.add(name)
    ahead = triton_cuda._TwoLaunches(LOGITS, CONSTANTS, 1, ())
    for _ in range(4):
        ahead(ARGUMENTS)
    assert launched.log == ["row_kernel", *TWO, "row_kernel", "row_kernel"]
    assert ahead.launch_ahead is None


@pytest.mark.parametrize(
    ("device", "capability", "hip", "early"),
    [
        ("cuda", (9, 0), None, True),
        ("cuda", (12, 0), None, True),
        ("cuda", (8, 9), None, False),
        ("cuda", (9, 4), "6.2", False),
        ("cpu", (9, 0), None, False),
    ],
)
def test_which_devices_start_a_kernel_early(monkeypatch, device, capability, hip, early):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.version, "hip", hip)
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.interpret = False
        assert may_start_early.__wrapped__(torch.device(device)) == early
        triton.knobs.runtime.interpret = True  # which has no such instruction
        assert not may_start_early.__wrapped__(torch.device(device))


@pytest.mark.parametrize("early", [True, False])
def test_a_kernel_that_starts_early_waits_before_it_looks_at_the_logits(early):
    """Read the code that Triton compiles for a GPU, since the interpreter has no such instruction."""
    ptx = printed_with_compiler(COMPILED, str(early))
    words = {"ld.global": "read", "griddepcontrol.wait": "wait", "atom.global": "lower", "red.global": "lower"}
    found = [word for line in ptx.splitlines() for text, word in words.items() if text in line]
    token_and_change, logit = ["read", "read"], ["read", "lower", "lower"]
    assert found == [*token_and_change, *(["wait"] if early else []), *logit]
