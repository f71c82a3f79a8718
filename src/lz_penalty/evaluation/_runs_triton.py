"""The Triton kernel of `_repeats.trailing_runs`: one program for each row and block of places."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

__all__ = ["trailing_runs"]

_BLOCK = 256
_UNROLLED = 4  # comparisons between two looks at whether any place of the block still matches


@triton.jit(do_not_specialize=["stride", "width"])
def _runs_kernel(tokens, stride, slots, begins, ends, caps, runs, width, BLOCK: tl.constexpr, UNROLLED: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    begin, end, cap = tl.load(begins + row), tl.load(ends + row), tl.load(caps + row)
    line = tokens + tl.load(slots + row) * stride
    matches = (place > begin) & (place < end)
    run = tl.zeros((BLOCK,), dtype=tl.int32)
    back = begin * 0
    going = tl.max(matches.to(tl.int32), axis=0)
    while going > 0:
        for _ in tl.static_range(UNROLLED):
            matches = matches & (back < cap) & (place - 1 - back >= begin)
            last = tl.load(line + end - 1 - back, mask=end - 1 - back >= begin, other=0)
            earlier = tl.load(line + place - 1 - back, mask=matches, other=0)
            matches = matches & (earlier == last)
            run += matches.to(tl.int32)
            back += 1
        going = tl.max(matches.to(tl.int32), axis=0)
    tl.store(runs + row * width + place, run, mask=place < width)


def trailing_runs(
    tokens: torch.Tensor, slots: torch.Tensor, begins: torch.Tensor, ends: torch.Tensor, caps: torch.Tensor
) -> torch.Tensor:
    """Return what `_repeats.trailing_runs` returns. The last dimension of `tokens` has stride 1; the others are int64."""
    rows, width = len(slots), tokens.shape[1]
    runs = torch.empty((rows, width), dtype=torch.int32, device=tokens.device)
    if runs.numel():
        grid = (rows, triton.cdiv(width, _BLOCK))
        _runs_kernel[grid](
            tokens, tokens.stride(0), slots, begins, ends, caps, runs, width, BLOCK=_BLOCK, UNROLLED=_UNROLLED
        )
    return runs
