"""All Triton kernels round alike, so that a request's logits do not depend on which of them ran.

test_cuda.py compares their results bit for bit on a GPU. Without a GPU one can see how they are compiled: with fused
multiply-add, one kernel would round once where another rounds twice.
"""

import json

import torch

from lz_penalty.kernels import triton as triton_cuda
from tests.support.backends import printed_with_compiler

COMPILED = """
import json
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from lz_penalty.kernels.triton import _kernels as triton_kernels
from lz_penalty.kernels.triton import options

KINDS = {"literal": "fp32", "matches": "*i16", "loops": "*fp64", "kept_tokens": "*i64", "kept_flags": "*i8"}
KINDS |= dict.fromkeys(("logits", "changes", "originals"), "*fp32")
KINDS |= dict.fromkeys("token_ids lengths row_to_slot newest_ids table exempt_ids found_tokens ranks".split(), "*i32")
KINDS |= dict.fromkeys(("words", "kept_about"), "*i32")
CONSTANTS = {"EXEMPT_STEPS": 4, "BUFFER_BLOCK": 32, "LOOP_BLOCK": 1024, "RUN_BLOCK": 2048}
CONSTANTS |= {"GATE": True, "LOWEST": -1.0, "BLOCK": 512, "MOST_CHUNKS": 128, "MOST_WORDS": 128, "SPAN": 1024}
CONSTANTS |= {"EARLY": False, "logit_stride": 1, "stride": 1}
CONSTANTS |= dict.fromkeys(("starts", "tail_ids", "tail_lengths", "sampled_ids"))

def fused(kernel, **changes):
    names = [one.name for one in kernel.params]
    kinds = {name: "constexpr" if name in CONSTANTS else KINDS.get(name, "i32") for name in names}
    source = ASTSource(kernel, kinds, constexprs={name: CONSTANTS[name] for name in names if name in CONSTANTS})
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options(16) | changes)
    return compiled.metadata.enable_fp_fusion, compiled.asm["ptx"].count("fma.rn.f32")

kernels = {name: value for name, value in vars(triton_kernels).items() if name.endswith("_kernel")}
print(json.dumps({name: [fused(one), fused(one, enable_fp_fusion=True)] for name, one in kernels.items()}))
"""


def test_kernels_are_compiled_without_fused_multiply_add():
    """The logarithm contains fused multiply-adds of its own, which are equal in all kernels."""
    found = json.loads(printed_with_compiler(COMPILED))
    assert len(found) == 6
    assert not any(ours[0] for ours, _ in found.values())
    assert {name for name, (ours, usual) in found.items() if ours[1] < usual[1]} >= {"row_kernel", "write_kernel"}


def test_every_launch_compiles_that_way(monkeypatch):
    monkeypatch.setattr(triton_cuda, "_COMPILED", {})
    given = {}

    class Kernel:
        __name__ = "some_kernel"

        def __getitem__(self, grid):
            return lambda *arguments, **options: given.update(options)

    triton_cuda._Launch(Kernel(), (1, 1, 1), {"BLOCK": 16}, 4, ())((torch.zeros(1),))
    assert given == {"BLOCK": 16, **triton_cuda.options(4)}
    assert triton_cuda.options(4) == {"num_warps": 4, "enable_fp_fusion": False}
