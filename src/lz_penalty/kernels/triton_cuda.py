"""Triton backend for CUDA: one launch for ordinary windows, two for long ones; no host sync, no shared state.

One program works on one row. It loads every candidate's original logit, waits for its threads, and then lowers the
logits with atomic minima: the smallest value of a token wins, and neither a table over the vocabulary nor a sort is
needed. A long window is cut into chunks that many programs share; the longest match and the original logits then pass
through a scratch buffer from one launch to the next.

Tokens are addressed newest first: place 0 is the newest token of the context, drafts included.
"""

from __future__ import annotations

import contextlib
import functools
import math

import torch
import triton
import triton.language as tl

from lz_penalty import packing as col

_FUSED_WINDOW = 2048  # up to here one program does a whole row
_CHUNK = 1024  # tokens per program beyond that
_LOOP_BLOCK = 512  # periods that are looked at together
_RUN_BLOCK = 1024  # tokens of a run that are compared together
_FIRST, _UNROLL = 2, 8  # tokens that a match grows by, at first and later, before it is asked whether to go on
_SCRATCH_BYTES = 256 * 2**20  # long windows of very many rows are done in groups that fit into this

# Few globals: every launch checks that each is what the kernel was compiled with.
NONE, BEFORE_BUFFER = tl.constexpr(col.NONE), tl.constexpr(col.BEFORE_BUFFER)
ADJACENT, SGLANG = tl.constexpr(col.ADJACENT), tl.constexpr(col.SGLANG)
NEARNESS = tl.constexpr(2**17)  # above any distance; times the longest buffer it still fits 32 bits
FAR = tl.constexpr(2**30)  # above any distance or period

# Numbers that change between calls and must not bring a new compilation with them.
_jit = functools.partial(triton.jit, do_not_specialize=["vocab_size", "slots", "capacity", "tail_capacity", "first_row"])


def apply(logits, token_ids, lengths, starts, row_to_slot, tail_ids, tail_lengths, packed, vocab_size):
    """Penalise `logits [rows, vocab]` in place; see `lz_penalty.apply_lz_penalty_`."""
    drafts = 0 if tail_ids is None else tail_ids.shape[1]
    longest = token_ids.shape[1] + drafts
    if longest == 0 or token_ids.shape[0] == 0:
        return
    window = min(packed.max_window, longest)
    looped = min(packed.max_loop_window, longest)
    arguments = (
        logits,
        *logits.stride(),
        vocab_size,
        math.log2(vocab_size),
        token_ids,
        *token_ids.stride(),
        *token_ids.shape,
        lengths,
        starts,
        row_to_slot,
        tail_ids,
        *((0, 0) if tail_ids is None else tail_ids.stride()),
        drafts,
        tail_lengths,
        torch.as_tensor(packed.table),  # NumPy only under the interpreter
        col.COLUMNS if packed.rows > 1 else 0,
        torch.as_tensor(packed.exempt_ids),
    )
    constants = {
        "EXEMPT_STEPS": packed.max_exempt.bit_length(),
        "BUFFER_BLOCK": triton.next_power_of_2(max(1, min(packed.max_buffer, longest))),
        "LOOP_BLOCK": min(_LOOP_BLOCK, triton.next_power_of_2(looped // 3)) if looped >= 3 else 0,
        "RUN_BLOCK": _RUN_BLOCK,
        "FIRST": _FIRST,
        "UNROLL": _UNROLL,
        "LOWEST": torch.finfo(logits.dtype).min,
    }
    with torch.cuda.device(logits.device) if logits.is_cuda else contextlib.nullcontext():
        if window <= _FUSED_WINDOW:
            block = triton.next_power_of_2(max(1, window))
            _row_kernel[(logits.shape[0],)](*arguments, **constants, BLOCK=block, num_warps=_warps(block))
        else:
            _apply_in_chunks(arguments, constants, logits, triton.cdiv(window, _CHUNK))


def _apply_in_chunks(arguments, constants, logits, chunks):
    """The same for windows that one program cannot hold: two launches per group of rows."""
    rows, width = logits.shape[0], chunks * _CHUNK
    group = max(1, _SCRATCH_BYTES // (width * (logits.element_size() + 2)))
    launch = {**constants, "BLOCK": _CHUNK, "CHUNKS": chunks, "num_warps": _warps(_CHUNK)}
    for first in range(0, rows, group):
        count = min(group, rows - first)
        matches = logits.new_empty((count, width), dtype=torch.int16)
        originals = logits.new_empty((count, width))
        ranks = logits.new_empty((count, chunks), dtype=torch.int32)
        loops = logits.new_empty((count, 3), dtype=torch.float64)
        scratch = (first, matches, originals, ranks, loops)
        _gather_kernel[(count, chunks + 1)](*arguments, *scratch, **launch)
        _write_kernel[(count, chunks)](*arguments, *scratch, **launch)


def _warps(block: int) -> int:
    return max(1, min(16, block // 128))


# ---------------------------------------------------------------- where the tokens are


@triton.jit
def _settings(table, row, stride):
    """A row's settings: the columns of `lz_penalty.packing`, in their order, the exempt ids' range left out."""
    line = table + row * stride
    mode = tl.load(line)
    window = tl.load(line + 1)
    buffer = tl.load(line + 2)
    min_match = tl.load(line + 3)
    loop_window = tl.load(line + 4)
    strength = tl.load(line + 7).to(tl.float32, bitcast=True)
    escalation = tl.load(line + 8).to(tl.float32, bitcast=True)
    return mode, window, buffer, min_match, loop_window, strength, escalation


@triton.jit
def _clamped(pointer, row, default, high):
    value = default
    if pointer is not None:
        value = tl.minimum(tl.maximum(tl.load(pointer + row), 0), high).to(tl.int32)
    return value


@triton.jit
def _open(
    row, token_ids, slot_stride, stride, slots, capacity, lengths, starts, row_to_slot,
    tail_ids, tail_row_stride, tail_stride, tail_capacity, tail_lengths,
):  # fmt: skip
    """Where a row finds its tokens (for `_token`), and how many there are."""
    slot = _clamped(row_to_slot, row, row, slots - 1)
    end = _clamped(lengths, row, capacity, capacity)
    begin = _clamped(starts, row, 0, end)
    drafts = _clamped(tail_lengths, row, tail_capacity, tail_capacity)
    newest = token_ids + slot.to(tl.int64) * slot_stride + tl.cast(end + drafts - 1, tl.int64) * stride
    n = end - begin + drafts
    if tail_ids is None:
        return (newest, stride), n
    else:
        newest_draft = tail_ids + row.to(tl.int64) * tail_row_stride + tl.cast(drafts - 1, tl.int64) * tail_stride
        return (newest, stride, newest_draft, tail_stride, drafts), n


@triton.jit
def _token(at, place, mask):
    """The tokens at these places, counted back from the newest; 0 where `mask` is off."""
    if len(at) == 2:
        newest, stride = at
        return tl.load(newest - tl.cast(place, tl.int64) * stride, mask=mask, other=0)
    else:
        newest, stride, newest_draft, tail_stride, drafts = at
        old = tl.load(newest - tl.cast(place, tl.int64) * stride, mask=mask & (place >= drafts), other=0)
        draft = tl.load(newest_draft - tl.cast(place, tl.int64) * tail_stride, mask=mask & (place < drafts), other=0)
        return tl.where(place < drafts, draft.to(tl.int64), old.to(tl.int64))


@triton.jit
def _token_after(at, place, k, u: tl.constexpr, mask):
    """The tokens `k + u` behind these places; one address serves every `u`."""
    if len(at) == 2:
        newest, stride = at
        return tl.load(newest - (tl.cast(place, tl.int64) + k) * stride - u * stride, mask=mask, other=0)
    else:
        return _token(at, place + k + u, mask)


# ---------------------------------------------------------------- what they cost


@triton.jit
def _longest(at, token, e, offset, mode, candidate, buffer, recent, BUFFER_BLOCK: tl.constexpr, FIRST: tl.constexpr, UNROLL: tl.constexpr):  # fmt: skip
    """Each place's match, and the highest rank among them.

    The first few tokens decide for almost every place of ordinary text. In a loop the nearest place that is left has
    a full match, and then the others with the same token need not be measured: they could say nothing new.
    """
    source = offset + e  # where the tokens before each place begin
    limit = tl.minimum(recent - source, buffer)
    alive, match = _grow(at, source, limit, limit > 0, tl.zeros_like(e), 0, FIRST)
    valid = candidate & ((mode != BEFORE_BUFFER) | (e >= 2))
    nearest = tl.min(tl.where(alive & valid, e, tl.where(alive, FAR - 1, FAR)), 0)
    k = FIRST
    going = (nearest < FAR) & (k < buffer)
    if going & (nearest < FAR - 1):
        if _match_at(at, offset + nearest, buffer, recent, BUFFER_BLOCK) == buffer:
            match = tl.where(e == nearest, buffer, match)
            same = token == _token(at, e * 0 + offset + nearest - 1, candidate)
            alive = alive & valid & (same == 0)
            going = tl.max(alive.to(tl.int32), 0) > 0
    while going:
        alive, match = _grow(at, source, limit, alive, match, k, UNROLL)
        k += UNROLL
        going = (k < buffer) & (tl.max(alive.to(tl.int32), 0) > 0)
    return match, tl.max(_rank(match, e, valid), 0)


@triton.jit
def _grow(at, source, limit, alive, match, k, STEPS: tl.constexpr):
    """Compare `STEPS` more tokens of each match that is still alive, from the `k`-th on.

    All loads come first, so that they are in flight together.
    """
    here = ()
    want = ()
    for u in tl.static_range(STEPS):
        here = here + (_token_after(at, source, k, u, k + u < limit),)
        want = want + (_token_after(at, source * 0, k, u, k + u < limit),)
    for u in tl.static_range(STEPS):
        alive = alive & (k + u < limit) & (here[u] == want[u])
        match += alive.to(tl.int32)
    return alive, match


@triton.jit
def _match_at(at, source, buffer, recent, BUFFER_BLOCK: tl.constexpr):
    """The match of one place."""
    k = tl.arange(0, BUFFER_BLOCK)
    inside = (k < buffer) & (source + k < recent)
    equal = inside & (_token(at, k, inside) == _token(at, source + k, inside))
    return tl.min(tl.where(equal, BUFFER_BLOCK, k), 0)


@triton.jit
def _rank(match, e, valid):
    """One number that orders places by the length of their match, then by nearness; invalid extensions come last."""
    return match * NEARNESS + tl.where(valid, NEARNESS - 1 - e, 0)


@triton.jit
def _bits(at, token, candidate, mode, offset, e, match, best, min_match, literal):
    """Bits relative to a literal for the token at distance `e`; 0 where it has none, or none of its own.

    `best` is the highest rank of all places: it holds the longest match and the nearest place that extends it.

    In a loop most places only say again what a nearer one says, and each of them would cost an atomic minimum on one
    address. Two kinds are left out: extensions by the token of the nearest extension, and places with the same token
    one lag of the longest match nearer. (SGLang's value falls with the length of the match, so there the place itself
    must have none.)
    """
    longest = best // NEARNESS
    nearness = best % NEARNESS
    nearest = NEARNESS - 1 - nearness
    distance = e.to(tl.float32)
    longer = match == longest
    if mode == SGLANG:
        length = (match + 1).to(tl.float32)
        value = tl.maximum((tl.log2(distance + 1) + tl.log2(length)) / length, 0.0)
    else:
        value = tl.where(min_match == 1, tl.log2(distance), literal)
        if (longest >= 1) & (longest + 1 >= min_match):
            length = longest.to(tl.float32)
            if mode == ADJACENT:
                value = tl.where(longer, tl.log2((length + 1) / length) - 1, value)
            else:
                extension = tl.log2(1 + (distance - 1) / (length * (distance + length))) - 1
                value = tl.where(longer & (e >= 2), extension, value)
    if (longest >= 1) & (nearness > 0):
        nearer = e - offset - nearest
        inside = candidate & (nearer >= 1)
        again = inside & (_token(at, offset + nearer - 1, inside) == token) & tl.where(mode == SGLANG, match == 0, longer == 0)
        first = _token(at, e * 0 + offset + nearest - 1, e > 0)
        again = again | (longer & (e > nearest) & (token == first))
        value = tl.where(again, literal, value)
    return tl.minimum(value - literal, 0.0)


@triton.jit
def _run(at, period, n, BLOCK: tl.constexpr):
    """How many of the newest tokens equal the token `period` before them."""
    run = 0
    going = True
    while going:
        i = tl.arange(0, BLOCK)
        inside = run + i + period < n
        equal = inside & (_token(at, run + i, inside) == _token(at, run + i + period, inside))
        step = tl.min(tl.where(equal, BLOCK, i), 0)
        run += step
        going = step == BLOCK
    return run


@triton.jit
def _sift(at, p, valid, alive, n):
    """Drop periods that do not repeat the newest tokens, or samples of the two further copies."""
    for k in range(1, 16):
        equal = _token(at, p * 0 + k, valid & (k < n)) == _token(at, p + k, valid & (p + k < n))
        alive = alive & (equal | (k >= 2 * p))
    for sample in range(1, 8 + 1):
        i = (2 * p * sample) // 8 - 1
        inside = valid & (i >= 0)
        alive = alive & ((_token(at, i, inside) == _token(at, i + p, inside)) | (i < 0))
    return alive


@triton.jit
def _trailing_loop(at, n, BLOCK: tl.constexpr, RUN_BLOCK: tl.constexpr):
    """Period and run of the loop with the most copies at the end, 0 and 0 if there is none: `loops.trailing_loop`.

    Periods that repeat the newest two tokens are measured one by one, in ascending order. A run that counts rules out
    every period up to its own length; one that does not count has the others sifted before the next is measured.
    """
    best_period = 0
    best_run = 0
    first = 1
    while first <= n // 3:
        p = first + tl.arange(0, BLOCK)
        first += BLOCK
        valid = p <= n // 3
        alive = valid & (_token(at, p, valid) == _token(at, p * 0, valid))
        alive = alive & (_token(at, p + 1, valid) == _token(at, p * 0 + 1, valid))
        period = tl.min(tl.where(alive, p, FAR), 0)
        sifted = False
        while period < FAR:
            run = _run(at, period, n, RUN_BLOCK)
            above = period
            if run >= 2 * period:
                above = run
                if (best_period == 0) | (tl.cast(run, tl.int64) * best_period > tl.cast(best_run, tl.int64) * period):
                    best_period = period
                    best_run = run
                first = tl.maximum(first, run + 1)
            elif not sifted:
                alive = _sift(at, p, valid, alive, n)
                sifted = True
            alive = alive & (p > above)
            period = tl.min(tl.where(alive, p, FAR), 0)
    return best_period, best_run


# ---------------------------------------------------------------- writing it down


@triton.jit
def _writable(token, keep, vocab_size, line, exempt_ids, EXEMPT_STEPS: tl.constexpr):
    """Which tokens may be adjusted: inside the vocabulary and not among the row's ascending exempt ids."""
    keep = keep & (token >= 0) & (token < vocab_size)
    if EXEMPT_STEPS > 0:
        end = tl.load(line + 6)  # packing.EXEMPT_END
        low = tl.zeros_like(token).to(tl.int32) + tl.load(line + 5)  # packing.EXEMPT_BEGIN
        high = tl.zeros_like(token).to(tl.int32) + end
        for _ in tl.static_range(EXEMPT_STEPS):
            open_ = low < high
            middle = (low + high) // 2
            below = tl.load(exempt_ids + middle, mask=open_, other=0) < token
            low = tl.where(open_ & below, middle + 1, low)
            high = tl.where(open_ & (below == 0), middle, high)
        keep = keep & (tl.load(exempt_ids + low, mask=low < end, other=-1) != token)
    return keep


@triton.jit
def _lower(cell, original, change, keep, LOWEST: tl.constexpr):
    """`cell = min(cell, original + change)` atomically; a finite logit stays finite, others stay as they are."""
    kind: tl.constexpr = cell.dtype.element_ty
    wide: tl.constexpr = tl.float64 if kind == tl.float64 else tl.float32
    value = original.to(wide)
    new = tl.maximum(value + change, LOWEST) + 0.0  # + 0.0: no negative zero, whose bits would not compare
    keep = keep & (tl.abs(value) < float("inf")) & (new < value)
    if kind.primitive_bitwidth >= 32:
        tl.atomic_min(cell, new.to(kind), mask=keep, sem="relaxed")
    else:
        narrow = new.to(kind)
        bits = cell.to(tl.pointer_type(tl.int16), bitcast=True)
        seen = original.to(tl.int16, bitcast=True)
        while tl.max(keep.to(tl.int32), 0) > 0:
            found = tl.atomic_cas(bits, seen, tl.where(keep, narrow.to(tl.int16, bitcast=True), seen), sem="relaxed")
            keep = keep & (found != seen) & (found.to(kind, bitcast=True).to(wide) > narrow.to(wide))
            seen = found


# ---------------------------------------------------------------- the kernels


@_jit
def _row_kernel(
    logits, row_stride, logit_stride, vocab_size, literal,
    token_ids, slot_stride, stride, slots, capacity, lengths, starts, row_to_slot,
    tail_ids, tail_row_stride, tail_stride, tail_capacity, tail_lengths,
    table, table_stride, exempt_ids,
    EXEMPT_STEPS: tl.constexpr, BUFFER_BLOCK: tl.constexpr, LOOP_BLOCK: tl.constexpr, RUN_BLOCK: tl.constexpr,
    FIRST: tl.constexpr, UNROLL: tl.constexpr, LOWEST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A whole row in one program, for windows of at most `BLOCK` tokens."""
    row = tl.program_id(0)
    mode, window, buffer, min_match, loop_window, strength, escalation = _settings(table, row, table_stride)
    at, n = _open(
        row, token_ids, slot_stride, stride, slots, capacity, lengths, starts, row_to_slot,
        tail_ids, tail_row_stride, tail_stride, tail_capacity, tail_lengths,
    )  # fmt: skip
    if (mode == NONE) & (loop_window == 0):
        return

    # Every candidate's token and original logit first: they are far away.
    offset = tl.where(mode == BEFORE_BUFFER, buffer, 0)
    recent = tl.where(mode == NONE, 0, tl.minimum(n, offset + window))  # tokens that the codelength sees
    e = 1 + tl.arange(0, BLOCK)
    place = offset + e - 1
    candidate = place < recent - tl.where(mode == SGLANG, buffer, 0)
    token = _token(at, place, candidate)
    keep = _writable(token, candidate, vocab_size, table + row * table_stride, exempt_ids, EXEMPT_STEPS)
    logits += row.to(tl.int64) * row_stride
    cell = logits + tl.where(keep, token, 0).to(tl.int64) * logit_stride
    original = tl.load(cell, mask=keep & (min_match == 1), other=0.0)

    match, best = _longest(
        at, token, e, offset, mode, candidate, buffer, recent, BUFFER_BLOCK, FIRST, UNROLL
    )  # fmt: skip
    if (mode == BEFORE_BUFFER) & (best < buffer * NEARNESS):  # the match before the buffer has no candidate, but counts
        best = tl.maximum(best, _match_at(at, offset, buffer, recent, BUFFER_BLOCK) * NEARNESS)
    bits = _bits(at, token, candidate, mode, offset, e, match, best, min_match, literal)
    if min_match > 1:  # then only extensions have a value
        original = tl.load(cell, mask=keep & (bits < 0), other=0.0)

    if LOOP_BLOCK > 0:
        period, run = _trailing_loop(at, tl.minimum(n, loop_window), LOOP_BLOCK, RUN_BLOCK)
        if period > 0:
            further = escalation * (literal + 1) * (run.to(tl.float32) / period.to(tl.float32) - 1)
            loop_token = _token(at, e * 0 + period - 1, e > 0)
            bits = tl.where((token == loop_token) & (bits < 0), bits - further, bits)
            alone = _writable(loop_token, e == 1, vocab_size, table + row * table_stride, exempt_ids, EXEMPT_STEPS)
            loop_cell = logits + tl.where(alone, loop_token, 0).to(tl.int64) * logit_stride
            loop_original = tl.load(loop_cell, mask=alone, other=0.0)
            tl.debug_barrier()
            _lower(loop_cell, loop_original, tl.zeros_like(bits) - strength * further, alone, LOWEST)
    tl.debug_barrier()  # every original has been read before any logit is lowered
    _lower(cell, original, strength * bits, keep & (bits < 0), LOWEST)


@_jit
def _gather_kernel(
    logits, row_stride, logit_stride, vocab_size, literal,
    token_ids, slot_stride, stride, slots, capacity, lengths, starts, row_to_slot,
    tail_ids, tail_row_stride, tail_stride, tail_capacity, tail_lengths,
    table, table_stride, exempt_ids,
    first_row, matches, originals, ranks, loops,
    EXEMPT_STEPS: tl.constexpr, BUFFER_BLOCK: tl.constexpr, LOOP_BLOCK: tl.constexpr, RUN_BLOCK: tl.constexpr,
    FIRST: tl.constexpr, UNROLL: tl.constexpr, LOWEST: tl.constexpr, BLOCK: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """First launch for long windows: matches and original logits of a chunk; the last program looks for the loop."""
    line = tl.program_id(0)
    chunk = tl.program_id(1)
    row = first_row + line
    mode, window, buffer, min_match, loop_window, strength, escalation = _settings(table, row, table_stride)
    at, n = _open(
        row, token_ids, slot_stride, stride, slots, capacity, lengths, starts, row_to_slot,
        tail_ids, tail_row_stride, tail_stride, tail_capacity, tail_lengths,
    )  # fmt: skip
    logits += row.to(tl.int64) * row_stride
    if chunk == CHUNKS:
        loops += line * 3
        tl.store(loops, -1.0)
        if LOOP_BLOCK > 0:
            period, run = _trailing_loop(at, tl.minimum(n, loop_window), LOOP_BLOCK, RUN_BLOCK)
            if period > 0:
                loop_token = _token(at, period - 1, period > 0)
                inside = (loop_token >= 0) & (loop_token < vocab_size)
                original = tl.load(logits + tl.where(inside, loop_token, 0).to(tl.int64) * logit_stride)
                tl.store(loops, tl.where(inside, loop_token, -1).to(tl.float64))
                tl.store(loops + 1, escalation * (literal + 1) * (run.to(tl.float32) / period.to(tl.float32) - 1))
                tl.store(loops + 2, original.to(tl.float64))
        return

    offset = tl.where(mode == BEFORE_BUFFER, buffer, 0)
    recent = tl.where(mode == NONE, 0, tl.minimum(n, offset + window))
    e = 1 + chunk * BLOCK + tl.arange(0, BLOCK)
    place = offset + e - 1
    if offset + chunk * BLOCK >= recent:
        tl.store(ranks + line * CHUNKS + chunk, 0)
        return
    token = _token(at, place, place < recent)
    candidate = place < recent - tl.where(mode == SGLANG, buffer, 0)
    match, best = _longest(
        at, token, e, offset, mode, candidate, buffer, recent, BUFFER_BLOCK, FIRST, UNROLL
    )  # fmt: skip
    keep = _writable(token, candidate & (match + 1 >= min_match), vocab_size, table + row * table_stride, exempt_ids, 0)
    original = tl.load(logits + tl.where(keep, token, 0).to(tl.int64) * logit_stride, mask=keep, other=0.0)
    if (chunk == 0) & (mode == BEFORE_BUFFER) & (best < buffer * NEARNESS):
        best = tl.maximum(best, _match_at(at, offset, buffer, recent, BUFFER_BLOCK) * NEARNESS)
    tl.store(ranks + line * CHUNKS + chunk, best)
    here = line.to(tl.int64) * (CHUNKS * BLOCK) + e - 1
    tl.store(matches + here, match.to(tl.int16))
    tl.store(originals + here, original)


@_jit
def _write_kernel(
    logits, row_stride, logit_stride, vocab_size, literal,
    token_ids, slot_stride, stride, slots, capacity, lengths, starts, row_to_slot,
    tail_ids, tail_row_stride, tail_stride, tail_capacity, tail_lengths,
    table, table_stride, exempt_ids,
    first_row, matches, originals, ranks, loops,
    EXEMPT_STEPS: tl.constexpr, BUFFER_BLOCK: tl.constexpr, LOOP_BLOCK: tl.constexpr, RUN_BLOCK: tl.constexpr,
    FIRST: tl.constexpr, UNROLL: tl.constexpr, LOWEST: tl.constexpr, BLOCK: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Second launch for long windows: every original has been read, so the logits may be lowered."""
    line = tl.program_id(0)
    chunk = tl.program_id(1)
    row = first_row + line
    mode, window, buffer, min_match, loop_window, strength, escalation = _settings(table, row, table_stride)
    at, n = _open(
        row, token_ids, slot_stride, stride, slots, capacity, lengths, starts, row_to_slot,
        tail_ids, tail_row_stride, tail_stride, tail_capacity, tail_lengths,
    )  # fmt: skip
    logits += row.to(tl.int64) * row_stride
    offset = tl.where(mode == BEFORE_BUFFER, buffer, 0)
    recent = tl.where(mode == NONE, 0, tl.minimum(n, offset + window))
    e = 1 + chunk * BLOCK + tl.arange(0, BLOCK)
    loop_token = tl.load(loops + line * 3).to(tl.int64)
    further = tl.load(loops + line * 3 + 1, mask=loop_token >= 0, other=0.0).to(tl.float32)
    if (chunk == 0) & (loop_token >= 0):
        token = tl.zeros_like(e).to(tl.int64) + loop_token
        alone = _writable(token, e == 1, vocab_size, table + row * table_stride, exempt_ids, EXEMPT_STEPS)
        original = tl.zeros([BLOCK], originals.dtype.element_ty) + tl.load(loops + line * 3 + 2).to(originals.dtype.element_ty)
        cell = logits + tl.where(alone, token, 0) * logit_stride
        _lower(cell, original, tl.zeros([BLOCK], tl.float32) - strength * further, alone, LOWEST)

    place = offset + e - 1
    candidate = place < recent - tl.where(mode == SGLANG, buffer, 0)
    if offset + chunk * BLOCK >= recent:
        return
    c = tl.arange(0, triton.next_power_of_2(CHUNKS))
    best = tl.max(tl.load(ranks + line * CHUNKS + c, mask=c < CHUNKS, other=0), 0)
    here = line.to(tl.int64) * (CHUNKS * BLOCK) + e - 1
    match = tl.load(matches + here, mask=candidate, other=0).to(tl.int32)
    original = tl.load(originals + here, mask=candidate, other=0.0)
    token = _token(at, place, candidate)
    bits = _bits(at, token, candidate, mode, offset, e, match, best, min_match, literal)
    bits = tl.where((token == loop_token) & (bits < 0), bits - further, bits)
    keep = _writable(token, candidate & (bits < 0), vocab_size, table + row * table_stride, exempt_ids, EXEMPT_STEPS)
    cell = logits + tl.where(keep, token, 0).to(tl.int64) * logit_stride
    _lower(cell, original, strength * bits, keep, LOWEST)
