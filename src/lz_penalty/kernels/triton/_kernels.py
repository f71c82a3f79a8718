"""The Triton kernels, which `lz_penalty.kernels.triton` launches.

`row_kernel` does a whole row; `find_kernel` and `lower_kernel` do it in two launches, the first of which needs no logits;
`gather_kernel` and `write_kernel` do long windows in chunks, after `store_kernel` has stored the newest tokens.
"""

import functools

import triton
import triton.language as tl

from lz_penalty.kernels.triton._gate import WORD, count_bits, count_copied, either, gate_opening, is_gated
from lz_penalty.kernels.triton._kept import first_loads, kept_of, row_bits
from lz_penalty.kernels.triton._loop import find_loop, further_bits, loop_at_end
from lz_penalty.kernels.triton._parts import (
    asks_for_nothing,
    await_kernel_before,
    codelength_bits,
    extent,
    find_matches,
    is_candidate,
    lower_logits,
    may_write,
    open_row,
    read_settings,
    tokens_at,
    with_match_before,
)

# The values and alignments that change between calls. A kernel must not be compiled for each: a server would wait for that.
#
# This is why the arguments are loose. Triton takes NamedTuples too, but it ignores the two lists below for their members
# (tried with 3.4, 3.7 and 3.9): `kernel[grid](...)` then compiles a kernel for every value and alignment.
_SIZES = (
    "row_stride vocab_size slot_stride slots capacity tail_row_stride tail_stride tail_capacity table_stride first_row"
)
_POINTERS = "logits token_ids lengths starts row_to_slot tail_ids tail_lengths newest_ids sampled_ids table exempt_ids"
_jit = functools.partial(triton.jit, do_not_specialize=_SIZES.split(), do_not_specialize_on_alignment=_POINTERS.split())


@_jit
def row_kernel(
    logits, row_stride, logit_stride, vocab_size, literal,
    token_ids, slot_stride, stride, slots, capacity, lengths, starts, row_to_slot,
    tail_ids, tail_row_stride, tail_stride, tail_capacity, tail_lengths, newest_ids, sampled_ids,
    table, table_stride, exempt_ids, kept_tokens, kept_flags, kept_about,
    EXEMPT_STEPS: tl.constexpr, BUFFER_BLOCK: tl.constexpr, LOOP_BLOCK: tl.constexpr, RUN_BLOCK: tl.constexpr,
    GATE: tl.constexpr, LOWEST: tl.constexpr, BLOCK: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Penalise a whole row in one program, for windows of at most `BLOCK` tokens."""
    row = tl.program_id(0)
    settings = read_settings(table, row, table_stride)
    at, n = open_row(
        row, token_ids, slot_stride, stride, slots, capacity, lengths, starts, row_to_slot,
        tail_ids, tail_row_stride, tail_stride, tail_capacity, tail_lengths, newest_ids, sampled_ids,
    )  # fmt: skip
    if asks_for_nothing(settings):
        return

    # Load every candidate's token and original logit first: they take longest to arrive.
    settings_row = table + row * table_stride
    e = 1 + tl.arange(0, BLOCK)
    offset, recent = extent(n, settings)
    place = offset + e - 1
    candidate = is_candidate(place, recent, settings)
    token = tokens_at(at, place, candidate)
    kept = kept_of(row, kept_tokens, kept_flags, kept_about, SPAN)
    loaded = first_loads(at, settings, n, e, offset, kept, SPAN)
    keep = may_write(token, candidate, vocab_size, settings_row, exempt_ids, EXEMPT_STEPS)
    logits += row.to(tl.int64) * row_stride
    cell = logits + tl.where(keep, token, 0).to(tl.int64) * logit_stride
    original = tl.load(cell, mask=tl.where(keep, settings.min_match, 0) == 1, other=0.0)
    bits = row_bits(
        at, settings, e, offset, n, recent, candidate, token, literal, settings_row, kept, loaded,
        GATE, BUFFER_BLOCK, SPAN,
    )  # fmt: skip
    if settings.min_match > 1:  # then only extensions have a value
        original = tl.load(cell, mask=keep & (bits < 0), other=0.0)
    if LOOP_BLOCK > 0:
        loop_token, further = loop_at_end(at, settings, e, n, token, literal, LOOP_BLOCK, RUN_BLOCK)
        if further > 0:
            bits = tl.where((token == loop_token) & (bits < 0), bits - further, bits)
            alone = may_write(loop_token, e == 1, vocab_size, settings_row, exempt_ids, EXEMPT_STEPS)
            loop_cell = logits + tl.where(alone, loop_token, 0).to(tl.int64) * logit_stride
            loop_original = tl.load(loop_cell, mask=alone, other=0.0)
            tl.debug_barrier()
            lower_logits(loop_cell, loop_original, tl.zeros_like(bits) - settings.strength * further, alone, LOWEST)
    tl.debug_barrier()  # every original has been read before any logit is lowered
    lower_logits(cell, original, settings.strength * bits, keep & (bits < 0), LOWEST)


@_jit
def find_kernel(
    vocab_size, literal,
    token_ids, slot_stride, stride, slots, capacity, lengths, starts, row_to_slot,
    tail_ids, tail_row_stride, tail_stride, tail_capacity, tail_lengths, newest_ids, sampled_ids,
    table, table_stride, exempt_ids, kept_tokens, kept_flags, kept_about,
    found_tokens, changes,
    EXEMPT_STEPS: tl.constexpr, BUFFER_BLOCK: tl.constexpr, LOOP_BLOCK: tl.constexpr, RUN_BLOCK: tl.constexpr,
    GATE: tl.constexpr, BLOCK: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Store which tokens' logits are to be lowered, and what is added to them. No logits are needed.

    A row has `BLOCK` candidates, and after them the token that would continue the loop; -1 instead of a token: none.
    """
    row = tl.program_id(0)
    settings = read_settings(table, row, table_stride)
    at, n = open_row(
        row, token_ids, slot_stride, stride, slots, capacity, lengths, starts, row_to_slot,
        tail_ids, tail_row_stride, tail_stride, tail_capacity, tail_lengths, newest_ids, sampled_ids,
    )  # fmt: skip
    settings_row = table + row * table_stride
    e = 1 + tl.arange(0, BLOCK)
    found_tokens += row.to(tl.int64) * (BLOCK + 1)
    changes += row.to(tl.int64) * (BLOCK + 1)
    if asks_for_nothing(settings):
        tl.store(found_tokens + e - 1, tl.zeros_like(e) - 1)
        tl.store(changes + e - 1, tl.zeros_like(e).to(tl.float32))
        tl.store(found_tokens + BLOCK, -1)
        tl.store(changes + BLOCK, 0.0)
        return
    offset, recent = extent(n, settings)
    place = offset + e - 1
    candidate = is_candidate(place, recent, settings)
    token = tokens_at(at, place, candidate)
    kept = kept_of(row, kept_tokens, kept_flags, kept_about, SPAN)
    loaded = first_loads(at, settings, n, e, offset, kept, SPAN)
    keep = may_write(token, candidate, vocab_size, settings_row, exempt_ids, EXEMPT_STEPS)
    bits = row_bits(
        at, settings, e, offset, n, recent, candidate, token, literal, settings_row, kept, loaded,
        GATE, BUFFER_BLOCK, SPAN,
    )  # fmt: skip
    if LOOP_BLOCK > 0:
        loop_token, further = loop_at_end(at, settings, e, n, token, literal, LOOP_BLOCK, RUN_BLOCK)
        bits = tl.where((token == loop_token) & (bits < 0), bits - further, bits)
        alone = may_write(loop_token, e == 1, vocab_size, settings_row, exempt_ids, EXEMPT_STEPS)
        tl.store(found_tokens + BLOCK + e * 0, tl.where(alone, loop_token, -1).to(tl.int32), mask=e == 1)
        tl.store(changes + BLOCK + e * 0, tl.zeros_like(bits) - settings.strength * further, mask=e == 1)
    tl.store(found_tokens + e - 1, tl.where(keep & (bits < 0), token, -1).to(tl.int32))
    tl.store(changes + e - 1, settings.strength * bits)


@_jit
def lower_kernel(
    logits, row_stride, logit_stride, found_tokens, changes,
    LOOP_BLOCK: tl.constexpr, LOWEST: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Lower the logits as `find_kernel` has found. `EARLY`: this kernel may start before the logits are computed."""
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    found_tokens += row.to(tl.int64) * (BLOCK + 1)
    changes += row.to(tl.int64) * (BLOCK + 1)
    token = tl.load(found_tokens + i)
    change = tl.load(changes + i)
    if LOOP_BLOCK > 0:
        loop_token = tl.load(found_tokens + BLOCK + i * 0)
        loop_change = tl.load(changes + BLOCK + i * 0)
    if EARLY:
        await_kernel_before()
    logits += row.to(tl.int64) * row_stride
    cell = logits + tl.maximum(token, 0).to(tl.int64) * logit_stride
    original = tl.load(cell, mask=token >= 0, other=0.0)
    if LOOP_BLOCK > 0:
        alone = (loop_token >= 0) & (i == 0)
        loop_cell = logits + tl.maximum(loop_token, 0).to(tl.int64) * logit_stride
        loop_original = tl.load(loop_cell, mask=alone, other=0.0)
        tl.debug_barrier()
        lower_logits(loop_cell, loop_original, loop_change, alone, LOWEST)
    tl.debug_barrier()  # every original has been read before any logit is lowered
    lower_logits(cell, original, change, token >= 0, LOWEST)


@_jit
def store_kernel(
    token_ids, slot_stride, stride, slots, capacity, lengths, starts, row_to_slot,
    tail_ids, tail_row_stride, tail_stride, tail_capacity, tail_lengths, newest_ids, sampled_ids,
):  # fmt: skip
    """Store the newest tokens, in a launch before those for long windows: there, many programs read one row."""
    open_row(
        tl.program_id(0), token_ids, slot_stride, stride, slots, capacity, lengths, starts, row_to_slot,
        tail_ids, tail_row_stride, tail_stride, tail_capacity, tail_lengths, newest_ids, sampled_ids,
    )  # fmt: skip


@_jit
def gather_kernel(
    logits, row_stride, logit_stride, vocab_size, literal,
    token_ids, slot_stride, stride, slots, capacity, lengths, starts, row_to_slot,
    tail_ids, tail_row_stride, tail_stride, tail_capacity, tail_lengths, newest_ids, sampled_ids,
    table, table_stride, exempt_ids,
    first_row, matches, originals, ranks, loops, words,
    EXEMPT_STEPS: tl.constexpr, BUFFER_BLOCK: tl.constexpr, LOOP_BLOCK: tl.constexpr, RUN_BLOCK: tl.constexpr,
    GATE: tl.constexpr, LOWEST: tl.constexpr, BLOCK: tl.constexpr, MOST_CHUNKS: tl.constexpr, MOST_WORDS: tl.constexpr,
):  # fmt: skip
    """Find matches and original logits of a chunk, in the first launch for long windows; the last program finds the loop."""
    group_row = tl.program_id(0)
    chunk = tl.program_id(1)
    chunks = tl.num_programs(1)
    if LOOP_BLOCK > 0:
        chunks -= 1
    row = first_row + group_row
    settings = read_settings(table, row, table_stride)
    at, n = open_row(
        row, token_ids, slot_stride, stride, slots, capacity, lengths, starts, row_to_slot,
        tail_ids, tail_row_stride, tail_stride, tail_capacity, tail_lengths, None, None,
    )  # fmt: skip
    logits += row.to(tl.int64) * row_stride
    if chunk == chunks:
        loops += group_row * 3
        tl.store(loops, -1.0)
        if LOOP_BLOCK > 0:
            period, run = find_loop(at, tl.minimum(n, settings.loop_window), LOOP_BLOCK, RUN_BLOCK)
            if period > 0:
                loop_token = tokens_at(at, period - 1, period > 0)
                inside = (loop_token >= 0) & (loop_token < vocab_size)
                original = tl.load(logits + tl.where(inside, loop_token, 0).to(tl.int64) * logit_stride)
                tl.store(loops, tl.where(inside, loop_token, -1).to(tl.float64))
                tl.store(loops + 1, further_bits(period, run, settings.escalation, literal))
                tl.store(loops + 2, original.to(tl.float64))
        return

    offset, recent = extent(n, settings)
    e = 1 + chunk * BLOCK + tl.arange(0, BLOCK)
    if GATE:
        if is_gated(settings, n):
            count_copied(at, settings, n, e, words + (group_row * chunks + chunk).to(tl.int64) * MOST_WORDS, None, 0)
    place = offset + e - 1
    if offset + chunk * BLOCK >= recent:
        tl.store(ranks + group_row * chunks + chunk, 0)
        return
    token = tokens_at(at, place, place < recent)
    candidate = is_candidate(place, recent, settings)
    keep = may_write(token, candidate, vocab_size, table, exempt_ids, 0)
    cell = logits + tl.where(keep, token, 0).to(tl.int64) * logit_stride
    original = tl.load(cell, mask=tl.where(keep, settings.min_match, 0) == 1, other=0.0)
    match, best = find_matches(at, settings, e, offset, recent, candidate, token, (), BUFFER_BLOCK)
    if settings.min_match > 1:  # then only extensions have a value
        original = tl.load(cell, mask=keep & (match + 1 >= settings.min_match), other=0.0)
    if chunk == 0:
        best = with_match_before(best, at, settings, offset, recent, BUFFER_BLOCK)
    tl.store(ranks + group_row * chunks + chunk, best)
    here = group_row.to(tl.int64) * (chunks * BLOCK) + e - 1
    tl.store(matches + here, match.to(tl.int16))
    tl.store(originals + here, original)


@_jit
def write_kernel(
    logits, row_stride, logit_stride, vocab_size, literal,
    token_ids, slot_stride, stride, slots, capacity, lengths, starts, row_to_slot,
    tail_ids, tail_row_stride, tail_stride, tail_capacity, tail_lengths, newest_ids, sampled_ids,
    table, table_stride, exempt_ids,
    first_row, matches, originals, ranks, loops, words,
    EXEMPT_STEPS: tl.constexpr, BUFFER_BLOCK: tl.constexpr, LOOP_BLOCK: tl.constexpr, RUN_BLOCK: tl.constexpr,
    GATE: tl.constexpr, LOWEST: tl.constexpr, BLOCK: tl.constexpr, MOST_CHUNKS: tl.constexpr, MOST_WORDS: tl.constexpr,
):  # fmt: skip
    """Lower the logits, in the second launch for long windows: by then every original logit has been read."""
    group_row = tl.program_id(0)
    chunk = tl.program_id(1)
    chunks = tl.num_programs(1)
    row = first_row + group_row
    settings = read_settings(table, row, table_stride)
    at, n = open_row(
        row, token_ids, slot_stride, stride, slots, capacity, lengths, starts, row_to_slot,
        tail_ids, tail_row_stride, tail_stride, tail_capacity, tail_lengths, None, None,
    )  # fmt: skip
    logits += row.to(tl.int64) * row_stride
    offset, recent = extent(n, settings)
    e = 1 + chunk * BLOCK + tl.arange(0, BLOCK)
    loop_token = tl.full([], -1, tl.int64)
    further = tl.full([], 0.0, tl.float32)
    if LOOP_BLOCK > 0:
        loop_token = tl.load(loops + group_row * 3).to(tl.int64)
        further = tl.load(loops + group_row * 3 + 1, mask=loop_token >= 0, other=0.0).to(tl.float32)
    if (chunk == 0) & (loop_token >= 0):
        token = tl.zeros_like(e).to(tl.int64) + loop_token
        alone = may_write(token, e == 1, vocab_size, table + row * table_stride, exempt_ids, EXEMPT_STEPS)
        kind: tl.constexpr = originals.dtype.element_ty
        wide: tl.constexpr = tl.float64 if kind == tl.float64 else tl.float32  # no direct way from float64 to bfloat16
        original = tl.zeros([BLOCK], kind) + tl.load(loops + group_row * 3 + 2).to(wide).to(kind)
        cell = logits + tl.where(alone, token, 0) * logit_stride
        lower_logits(cell, original, tl.zeros([BLOCK], tl.float32) - settings.strength * further, alone, LOWEST)

    place = offset + e - 1
    candidate = is_candidate(place, recent, settings)
    if offset + chunk * BLOCK >= recent:
        return
    c = tl.arange(0, MOST_CHUNKS)
    best = tl.max(tl.load(ranks + group_row * chunks + c, mask=c < chunks, other=0), 0)
    here = group_row.to(tl.int64) * (chunks * BLOCK) + e - 1
    match = tl.load(matches + here, mask=candidate, other=0).to(tl.int32)
    original = tl.load(originals + here, mask=candidate, other=0.0)
    token = tokens_at(at, place, candidate)
    bits = codelength_bits(at, settings, e, offset, candidate, token, match, best, literal)
    if GATE:
        opening = tl.where(settings.gate_window > 0, 0.0, 1.0).to(tl.float32)
        if is_gated(settings, n):
            copied = 0
            positions = tl.minimum(n, settings.gate_window)
            for k in range(0, positions, WORD):
                word = words + (group_row * chunks + c).to(tl.int64) * MOST_WORDS + k // WORD
                found = tl.reduce(tl.load(word, mask=c < chunks, other=0), 0, either)
                copied += count_bits(found, positions - k)
            opening = gate_opening(copied, settings, n, table + row * table_stride)
        bits *= opening
    bits = tl.where((token == loop_token) & (bits < 0), bits - further, bits)
    keep = may_write(token, candidate & (bits < 0), vocab_size, table + row * table_stride, exempt_ids, EXEMPT_STEPS)
    cell = logits + tl.where(keep, token, 0).to(tl.int64) * logit_stride
    lower_logits(cell, original, settings.strength * bits, keep, LOWEST)
