"""Triton kernels that show lower bounds for `benchmarks.gpu`: an empty launch, and random access to logits."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 512


@triton.jit
def _empty(_pointer):
    return


@triton.jit
def _gather(logits, row_stride, ids, slot_stride, count, sums, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(ids + row * slot_stride + place, mask=place < count, other=0)
    logit = tl.load(logits + row * row_stride + token, mask=place < count, other=0.0)
    tl.store(sums + row * tl.num_programs(1) + tl.program_id(1), tl.sum(logit, 0))  # else the loads are optimised away


@triton.jit
def _lower(logits, row_stride, ids, slot_stride, count, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(ids + row * slot_stride + place, mask=place < count, other=0)
    value = -1000.0 - place.to(tl.float32)
    tl.atomic_min(logits + row * row_stride + token, value, mask=place < count, sem="relaxed")


def empty(anything: Tensor) -> None:
    """Run one program that does nothing, to time a launch."""
    _empty[(1,)](anything, num_warps=1)


def chunks(count: int) -> int:
    """Return the number of programs per row."""
    return -(-count // BLOCK)


def gather(logits: Tensor, ids: Tensor, count: int, sums: Tensor) -> None:
    """Read the logits of the first `count` ids of every row, and store sums of them in `sums [rows, chunks(count)]`."""
    _gather[(logits.shape[0], chunks(count))](logits, logits.stride(0), ids, ids.stride(0), count, sums, BLOCK=BLOCK)


def lower(logits: Tensor, ids: Tensor, count: int) -> None:
    """Lower the logits of the first `count` ids of every row with atomic minima, without reading them first."""
    _lower[(logits.shape[0], chunks(count))](logits, logits.stride(0), ids, ids.stride(0), count, BLOCK=BLOCK)


def problems(device: str) -> list[str]:
    """Return the names of kernels that are wrong on a small case."""
    ids = torch.randint(0, 3000, (3, 700), device=device)
    logits = torch.randn(3, 3000, device=device)
    sums = torch.zeros(3, chunks(700), device=device)
    gather(logits, ids, 700, sums)
    found = [] if torch.allclose(sums.sum(1), logits.gather(1, ids).sum(1), atol=1e-2) else ["gather"]
    place = torch.arange(700, device=device, dtype=torch.float32).expand(3, -1)
    want = logits.scatter_reduce(1, ids, -1000.0 - place, "amin")
    lower(logits, ids, 700)
    return found if torch.equal(logits, want) else [*found, "lower"]
