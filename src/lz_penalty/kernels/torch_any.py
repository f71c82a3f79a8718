"""PyTorch backend for any device: no loop over rows or tokens, and the host never waits. Triton is faster.

Doubling, as in suffix sorting, finds how many tokens from two places of a sequence on are equal: rank every stretch of
1, 2, 4, ... tokens so that equal stretches have equal ranks, then walk down the powers of two. The result is exact.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from lz_penalty import _packing as col


def prepare(arrays, packed, vocab_size, *, ahead=False):
    """Return a step for arrays like these; see `lz_penalty.kernels.Backend`."""
    return partial(_step, packed, vocab_size)


@torch.no_grad()
def _step(
    packed, vocab_size, logits, token_ids, lengths=None, starts=None, row_to_slot=None, tail_ids=None, tail_lengths=None,
    newest_ids=None,
):  # fmt: skip
    if newest_ids is not None:
        _store_newest(token_ids, lengths, row_to_slot, newest_ids)
    rows, device = logits.shape[0], logits.device
    table = torch.as_tensor(packed.table, device=device).expand(rows, -1)
    floats = table.contiguous().view(torch.float32).to(torch.promote_types(logits.dtype, torch.float32))
    newest_first, n = _newest_first(
        token_ids, lengths, starts, row_to_slot, tail_ids, tail_lengths, rows=rows, reach=packed.reach
    )
    literal = math.log2(vocab_size)
    tokens, bits = _codelengths(
        newest_first[:, : packed.codelength_reach], n, table, packed.max_buffer, literal, floats.dtype
    )
    if packed.max_gate_window:
        gated = newest_first[:, : packed.max_gate_window + packed.codelength_reach]
        bits = bits * _gate_opening(gated, n, table, packed.max_buffer + 1).to(bits.dtype)

    if packed.max_loop_window:
        period, copies = _trailing_loop(newest_first[:, : packed.max_loop_window], n, table[:, col.LOOP_WINDOW])
        token = newest_first.gather(1, (period - 1).clamp(min=0)[:, None])
        further = floats[:, col.ESCALATION] * (literal + 1) * (copies.to(floats.dtype) - 2)
        further = torch.where(period > 0, further, 0.0)[:, None]
        bits = torch.cat([torch.where(tokens == token, bits - further, bits), -further], dim=1)
        tokens = torch.cat([tokens, token], dim=1)

    keep = (tokens >= 0) & (tokens < vocab_size) & (bits < 0)
    if packed.max_exempt:
        keep &= ~_is_exempt(tokens, table, torch.as_tensor(packed.exempt_ids, device=device), packed.max_exempt)
    cell = torch.where(keep, tokens, 0)
    original = logits.gather(1, cell)
    new = original.to(floats.dtype) + torch.where(keep, bits, 0.0) * floats[:, col.STRENGTH, None]
    limits = torch.finfo(logits.dtype)
    new = torch.where(original.isfinite(), new.clamp(limits.min, limits.max), original).to(logits.dtype)
    logits.scatter_reduce_(1, cell, torch.where(keep, new, math.inf), "amin", include_self=True)
    return logits


def _store_newest(token_ids, lengths, row_to_slot, newest_ids):
    """Write the newest tokens to the histories. Rows without one add 0: to select rows, the host would have to wait."""
    slots, capacity = token_ids.shape
    if not slots or not capacity:
        return
    own = torch.arange(lengths.shape[0], device=lengths.device)
    slot = own if row_to_slot is None else row_to_slot.long().clamp(0, slots - 1)
    cells = slot, (lengths.long() - 1).clamp(0, capacity - 1)
    gained = torch.where((newest_ids >= 0) & (lengths > 0), newest_ids - token_ids[cells], 0)
    token_ids.index_put_(cells, gained.to(token_ids.dtype), accumulate=True)


def _newest_first(token_ids, lengths, starts, row_to_slot, tail_ids, tail_lengths, *, rows, reach):
    """Return the last `reach` tokens of every context, newest first `[rows, reach]`, and how many exist `[rows]`."""
    device, capacity = token_ids.device, token_ids.shape[1]

    def vector(given: Tensor | None, default: int, high: int | Tensor) -> Tensor:
        if given is None:
            return torch.full((rows,), default, dtype=torch.int64, device=device)
        return given.long().clamp(min=0).clamp(max=high)

    end = vector(lengths, capacity, capacity)
    begin = vector(starts, 0, end)
    slots = torch.arange(rows, device=device) if row_to_slot is None else vector(row_to_slot, 0, token_ids.shape[0] - 1)
    drafts = torch.zeros_like(end)
    if tail_ids is not None:
        drafts = vector(tail_lengths, tail_ids.shape[1], tail_ids.shape[1])
    reach = max(1, min(reach, capacity + (0 if tail_ids is None else tail_ids.shape[1])))
    back = torch.arange(reach, device=device)
    if capacity:
        index = (end + drafts)[:, None] - 1 - back
        newest_first = token_ids[slots[:, None], index.clamp(0, capacity - 1)].long()
    else:
        newest_first = torch.zeros(rows, reach, dtype=torch.int64, device=device)
    if tail_ids is not None and tail_ids.shape[1]:
        index = drafts[:, None] - 1 - back
        newest_first = torch.where(index >= 0, tail_ids.long().gather(1, index.clamp(min=0)), newest_first)
    return newest_first, (end - begin + drafts).clamp(max=reach)


def _codelengths(newest_first, n, table, max_buffer, literal, dtype):
    """Return tokens and their bits relative to a literal `[rows, reach]`; bits are 0 where there is no value."""
    if not newest_first.shape[1]:
        return newest_first, newest_first.to(dtype)
    mode, window, buffer, min_match = (
        table[:, c, None].long() for c in (col.MODE, col.WINDOW, col.BUFFER, col.MIN_MATCH)
    )
    adjacent, sglang = mode == col.ADJACENT, mode == col.SGLANG
    offset = torch.where(mode == col.BEFORE_BUFFER, buffer, 0)
    recent = torch.minimum(n[:, None], offset + window) * (mode != col.NONE)  # tokens that the codelength considers
    place = torch.arange(newest_first.shape[1], device=newest_first.device)
    e = place - offset + 1  # each token's distance in the window
    candidate = (e >= 1) & (place < recent - torch.where(sglang, buffer, 0))

    agree = _agreement(newest_first, max_buffer)
    agree = torch.cat([agree[:, 1:], torch.zeros_like(agree[:, :1])], dim=1)  # of the source just before each place
    match = agree.minimum(buffer).minimum(recent - place - 1).clamp(min=0)
    match = torch.where((e >= 0) & (place < recent), match, 0)  # e = 0: no candidate, but it counts for the longest
    longest = match.amax(dim=1, keepdim=True)

    distance, length = e.clamp(min=1).to(dtype), longest.clamp(min=1).to(dtype)
    value = torch.where(min_match == 1, distance.log2(), math.inf)
    grown = torch.where(
        adjacent,
        ((length + 1) / length).log2() - 1,
        (1 + (distance - 1) / (length * (distance + length))).log2() - 1,
    )
    extends = (match == longest) & (longest >= 1) & (longest + 1 >= min_match) & (adjacent | (e >= 2)) & ~sglang
    value = torch.where(extends, grown, value)
    lam = (match + 1).to(dtype)
    value = torch.where(sglang, (((distance + 1).log2() + lam.log2()) / lam).clamp(min=0), value)
    return newest_first, torch.where(candidate, (value - literal).clamp(max=0), 0.0)


def _agreement(newest_first: Tensor, limit: int) -> Tensor:
    """Return how many tokens from each place on equal the first tokens `[rows, reach]`; exact up to `limit`."""
    reach = newest_first.shape[1]
    ranks = [newest_first]
    while (1 << len(ranks)) <= min(limit, reach):
        size = 1 << (len(ranks) - 1)
        ranks.append(_dense_ranks(ranks[-1], torch.nn.functional.pad(ranks[-1][:, size:], (0, size), value=-1)))
    place = torch.arange(reach, device=newest_first.device)
    agree = torch.zeros_like(newest_first)
    for level in range(len(ranks) - 1, -1, -1):
        there = place + agree
        inside = there + (1 << level) <= reach
        rank = ranks[level]
        equal = rank.gather(1, agree.clamp(max=reach - 1)) == rank.gather(1, there.clamp(max=reach - 1))
        agree = agree + torch.where(inside & equal, 1 << level, 0)
    return agree


def _dense_ranks(first: Tensor, second: Tensor) -> Tensor:
    """Return ranks `[rows, reach]`: two places of a row have equal ranks exactly if both of their entries are equal."""
    order = second.argsort(dim=1, stable=True)
    order = order.gather(1, first.gather(1, order).argsort(dim=1, stable=True))
    first, second = first.gather(1, order), second.gather(1, order)
    new = (first[:, 1:] != first[:, :-1]) | (second[:, 1:] != second[:, :-1])
    ranks = torch.nn.functional.pad(new.long().cumsum(dim=1), (1, 0))
    return torch.empty_like(ranks).scatter_(1, order, ranks)


def _gate_opening(newest_first: Tensor, n: Tensor, table: Tensor, largest_size: int) -> Tensor:
    """Return which part of every codelength is charged `[rows, 1]`: the definition's `gate_opening` of its `copy_share`.

    N-grams get ranks, equal ones equal ranks: first those of one token, then those of two, four and so on.
    """
    reach = newest_first.shape[1]
    window, min_match, gate_window = (table[:, c, None].long() for c in (col.WINDOW, col.MIN_MATCH, col.GATE_WINDOW))
    size = min_match.clamp(min=2)
    place = torch.arange(reach, device=newest_first.device)
    rank, length = newest_first, torch.ones_like(size)
    for _ in range((max(2, largest_size) - 1).bit_length()):
        step = length.minimum(size - length)  # 0 if the row's n-grams are complete
        rank = _dense_ranks(rank, rank.gather(1, (place + step).clamp(max=reach - 1)))
        length = length + step
    rank = torch.where(place + size <= n[:, None], rank, reach + place)  # an n-gram that is not inside the context
    order = rank.argsort(dim=1, stable=True)
    rank = rank.gather(1, order)
    nearer, farther = order[:, :-1], order[:, 1:]
    recent = n[:, None].minimum(gate_window)
    copied = (rank[:, :-1] == rank[:, 1:]) & (farther - nearer <= window) & (nearer < recent)
    exact = torch.float64 if newest_first.device.type != "mps" else torch.float32
    share = copied.sum(dim=1, keepdim=True).to(exact) / recent.clamp(min=1).to(exact)
    low, high = (_doubles(table, c).to(exact) for c in (col.GATE_LOW, col.GATE_HIGH))
    opening = torch.where(n[:, None] < table[:, col.GATE_FROM, None], 0.0, ((share - low) / (high - low)).clamp(0, 1))
    return torch.where(gate_window > 0, opening, 1.0)


def _doubles(table: Tensor, column: int) -> Tensor:
    """Return a setting that takes two columns `[rows, 1]`."""
    return table[:, column : column + 2].contiguous().view(torch.float64)


def _trailing_loop(newest_first: Tensor, n: Tensor, loop_window: Tensor) -> tuple[Tensor, Tensor]:
    """Return period (0 without a loop) and copies `[rows]` of the loop that `loops.trailing_loop` finds in each row."""
    looped = n.minimum(loop_window.long())[:, None]
    period = torch.arange(newest_first.shape[1], device=newest_first.device)
    run = _agreement(newest_first, newest_first.shape[1]).minimum((looped - period).clamp(min=0))
    # In float64, different fractions of such small integers stay different, and equal ones stay equal.
    exact = torch.float64 if newest_first.device.type != "mps" else torch.float32
    copies = 1 + run.to(exact) / period.clamp(min=1).to(exact)
    copies = torch.where((run >= 2 * period) & (period >= 1), copies, 0.0)
    best = copies.amax(dim=1)
    smallest = torch.where(copies == best[:, None], period, period.numel()).amin(dim=1)
    return torch.where(best > 0, smallest, 0), best


def _is_exempt(tokens: Tensor, table: Tensor, exempt_ids: Tensor, max_exempt: int) -> Tensor:
    """Return which tokens `[rows, k]` are exempt in their row: a binary search in each row's ascending range."""
    low = table[:, col.EXEMPT_BEGIN, None].long().expand_as(tokens)
    end = table[:, col.EXEMPT_END, None].long()
    high = end.expand_as(tokens)
    last = exempt_ids.numel() - 1
    for _ in range(max_exempt.bit_length()):
        middle = (low + high) // 2
        below = (exempt_ids[middle.clamp(max=last)] < tokens) & (low < high)
        low, high = torch.where(below, middle + 1, low), torch.where(below, high, middle)
    return (low < end) & (exempt_ids[low.clamp(max=last)] == tokens)
