"""Triton backend for CUDA: one launch for ordinary windows, two for long ones; no host sync.

One program works on one row. It loads every candidate's original logit, waits for its threads, and then lowers the
logits with atomic minima: the smallest value of a token wins, and neither a table over the vocabulary nor a sort is
needed. A long window is cut into chunks that many programs share; the longest match and the original logits then pass
through a scratch buffer from one launch to the next.

An engine may know the newest tokens long before it has the logits. Then one launch finds the changes, on a stream of its
own while the model runs, and another lowers the logits: that one is all that the step waits for.

Tokens are addressed newest first: place 0 is the newest token of the context, drafts included.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
import triton
import triton.language as tl

from lz_penalty import packing as col
from lz_penalty.kernels.cuda_launch import LaunchAhead, direct_launch
from lz_penalty.kernels.triton_parts import (
    BEFORE_BUFFER,
    NEARNESS,
    NONE,
    SGLANG,
    codelength_bits,
    find_loop,
    find_matches,
    lower_logits,
    match_at,
    may_write,
    open_row,
    read_settings,
    tokens_at,
)

_FUSED_WINDOW = 2048  # up to here one program does a whole row
_CHUNK = 512  # tokens per program beyond that
# Few distinct sizes: each is compiled once, and a server should not stop for that when a request brings a new setting.
_SMALLEST_BLOCK, _SMALLEST_BUFFER = 512, 32
_EXEMPT_STEPS = (0, 4, 11)  # of a binary search: none, up to 15 ids, up to 1,024 and more
_LOOP_BLOCK = 1024  # periods that are looked at together
_RUN_BLOCK = 2048  # tokens of a run that are compared together
_FIRST, _UNROLL = 2, 8  # tokens that a match grows by, at first and later, before it is asked whether to go on
_SCRATCH_BYTES = 256 * 2**20  # long windows of very many rows are done in groups that fit into this

# What changes between calls and must not bring a new compilation with it: a server would stop for that.
_SIZES = "row_stride vocab_size slot_stride slots capacity tail_row_stride tail_stride tail_capacity first_row"
_POINTERS = "logits token_ids lengths starts row_to_slot tail_ids tail_lengths newest_ids table exempt_ids"
_jit = functools.partial(triton.jit, do_not_specialize=_SIZES.split(), do_not_specialize_on_alignment=_POINTERS.split())
_COMPILED: dict[tuple, Any] = {}  # what `_Launch` has compiled so far


def prepare(given, packed, vocab_size, ahead=False):
    """A function that penalises arrays like these; see `lz_penalty.ops.prepare_lz_penalty`."""
    logits, token_ids, _, _, _, tail_ids, _, newest_ids = given
    tail_strides, drafts = ((0, 0), 0) if tail_ids is None else (tail_ids.stride(), tail_ids.shape[1])
    rows, longest = logits.shape[0], token_ids.shape[1] + drafts
    if longest == 0 or token_ids.shape[0] == 0:
        return lambda logits, *_: logits
    window = min(packed.max_window, longest)
    looped = min(packed.max_loop_window, longest)
    logits_sizes = (*logits.stride(), vocab_size, math.log2(vocab_size))
    history_sizes = (*token_ids.stride(), *token_ids.shape)
    tail_sizes = (*tail_strides, drafts)
    settings = (_tensor(packed.table), col.COLUMNS if packed.rows > 1 else 0, _tensor(packed.exempt_ids))
    kinds = (
        logits.device.index,
        logits.stride(1),
        (logits.stride(0) | token_ids.stride(0)) >> 31,
        token_ids.stride(1),
        *[None if array is None else array.dtype for array in given],
        packed.rows > 1,
    )
    constants = {
        "EXEMPT_STEPS": next(steps for steps in _EXEMPT_STEPS if packed.max_exempt < 2**steps),
        "BUFFER_BLOCK": _power_of_2(packed.max_buffer, _SMALLEST_BUFFER),
        "LOOP_BLOCK": _LOOP_BLOCK if looped >= 3 else 0,
        "RUN_BLOCK": _RUN_BLOCK,
        "FIRST": _FIRST,
        "UNROLL": _UNROLL,
        "LOWEST": torch.finfo(logits.dtype).min,
    }
    if window <= _FUSED_WINDOW:
        block = _power_of_2(window, _SMALLEST_BLOCK)
        warps = max(1, min(32, block // 32))  # one token per thread: latency, not work, is what a row costs
        if ahead:
            run = _Ahead(logits, constants | {"BLOCK": block}, warps, kinds)
        else:
            run = _Launch(_row_kernel, (rows, 1, 1), constants | {"BLOCK": block}, warps, kinds)
        store = None
    else:
        run = _Chunks(logits, constants, _power_of_2(-(-window // _CHUNK), 1), kinds)
        store = None if newest_ids is None else _Launch(_store_kernel, (rows, 1, 1), {}, 1, kinds)

    def step(
        logits, token_ids, lengths=None, starts=None, row_to_slot=None, tail_ids=None, tail_lengths=None, newest_ids=None
    ):  # fmt: skip
        history = (
            token_ids, *history_sizes, lengths, starts, row_to_slot, tail_ids, *tail_sizes, tail_lengths, newest_ids
        )  # fmt: skip
        if store is not None:
            store(history)
        run((logits, *logits_sizes, *history, *settings))
        return logits

    return step if not logits.is_cuda else _Prepared(step, run, logits.device.index)


class _Prepared:
    """A step on its device: Triton launches on the current one, whichever the arrays are on."""

    def __init__(self, step, launch, index):
        self._step, self._launch, self._index = step, launch, index

    def __call__(self, *given):
        if torch.cuda.current_device() == self._index:
            return self._step(*given)
        with torch.cuda.device(self._index):
            return self._step(*given)

    @property
    def ahead(self):
        """The `LaunchAhead` of a step that was prepared for it; `None` for long windows, and before the third one.

        It launches on the device that is the current one, so there is none on others either.
        """
        return getattr(self._launch, "launch_ahead", None) if torch.cuda.current_device() == self._index else None


class _Launch:
    """`kernel[grid](...)`, each time with less of Triton's work, most of what a launch costs.

    The first call compiles, if nobody has, or launches what is compiled: without Triton's look at every argument, since
    `kinds`, the constants and the warps are all that the code depends on. The calls after it go to the driver.
    """

    def __init__(self, kernel, grid, constants, warps, kinds, patience=2):
        self._kernel, self._grid, self._constants, self._warps = kernel, grid, constants, warps
        self._key = (kernel.__name__, warps, kinds, *constants.values())
        self._calls, self._patience = 0, patience
        self.direct, self.refused = None, False

    def __call__(self, arguments):
        if self.direct is not None and self.direct(arguments):
            return
        compiled = _COMPILED.get(self._key)
        if compiled is None:  # always, under the interpreter
            _COMPILED[self._key] = self._kernel[self._grid](*arguments, **self._constants, num_warps=self._warps)
            return
        # Addresses instead of tensors: Triton would ask the driver about each.
        given = [one.data_ptr() if isinstance(one, torch.Tensor) else one for one in arguments]
        compiled[self._grid](*given, *self._constants.values())
        self._calls += 1
        if self._calls == self._patience:  # an engine that prepares; a single call would not pay for it
            self.direct = direct_launch(compiled, self._grid, arguments)
            self.refused = self.direct is None


class _Ahead:
    """The same in two launches, the first of which needs no logits.

    Not in the first call: it may be the only one before the batch changes again. Nor where Triton must launch: two pay only
    if the first can be ahead.
    """

    def __init__(self, logits, constants, warps, kinds):
        grid = (logits.shape[0], 1, 1)
        self._whole = _Launch(_row_kernel, grid, constants, warps, kinds)
        found = {name: value for name, value in constants.items() if name != "LOWEST"}
        self._find = _Launch(_find_kernel, grid, found, warps, kinds, patience=1)
        lowered = {name: constants[name] for name in ("LOOP_BLOCK", "LOWEST", "BLOCK")}
        self._lower = _Launch(_lower_kernel, grid, lowered, warps, kinds, patience=1)
        self._shape = (logits.shape[0], constants["BLOCK"] + 1)
        self._between = None
        self._ahead = None
        self._is_first = True

    def __call__(self, arguments):
        if self._is_first or self._find.refused or self._lower.refused:
            self._is_first = False
            self._whole(arguments)
            return
        logits, row_stride, logit_stride, vocab_size, literal, *history_and_settings = arguments
        if self._between is None:
            self._between = (
                logits.new_empty(self._shape, dtype=torch.int32),
                logits.new_empty(self._shape, dtype=torch.float32),
            )
        self._find((vocab_size, literal, *history_and_settings, *self._between))
        self._lower((logits, row_stride, logit_stride, *self._between))

    @property
    def launch_ahead(self):
        if self._ahead is None and self._find.direct is not None and self._lower.direct is not None:
            self._ahead = LaunchAhead(self._find.direct, self._lower.direct, self._between)
        return self._ahead


class _Chunks:
    """The same for windows that one program cannot hold: two launches per group of rows."""

    def __init__(self, logits, constants, chunks, kinds):
        rows = logits.shape[0]
        self._width, self._chunks = chunks * _CHUNK, chunks
        most = max(1, _SCRATCH_BYTES // (self._width * (logits.element_size() + 2)))
        constants = constants | {"BLOCK": _CHUNK, "CHUNKS": chunks}
        warps = max(1, _CHUNK // 128)
        loop = constants["LOOP_BLOCK"] > 0
        self._groups = []
        for first in range(0, rows, most):
            count = min(most, rows - first)
            gather = _Launch(_gather_kernel, (count, chunks + loop, 1), constants, warps, kinds)
            write = _Launch(_write_kernel, (count, chunks, 1), constants, warps, kinds)
            self._groups.append((first, count, gather, write))

    def __call__(self, arguments):
        logits = arguments[0]
        for first, count, gather, write in self._groups:
            matches = logits.new_empty((count, self._width), dtype=torch.int16)
            originals = logits.new_empty((count, self._width))
            ranks = logits.new_empty((count, self._chunks), dtype=torch.int32)
            loops = logits.new_empty((count, 3), dtype=torch.float64)
            given = (*arguments, first, matches, originals, ranks, loops)
            gather(given)
            write(given)


def _tensor(array):
    """Settings are NumPy arrays where the logits are on the CPU, which here means under the interpreter."""
    return array if isinstance(array, torch.Tensor) else torch.from_numpy(array)


def _power_of_2(n: int, smallest: int) -> int:
    return max(smallest, 1 << max(0, n - 1).bit_length())


# ---------------------------------------------------------------- the kernels


@triton.jit
def asks_for_nothing(settings):
    """Whether a row with these settings is left alone."""
    mode, window, buffer, min_match, loop_window, strength, escalation = settings
    return (mode == NONE) & (loop_window == 0)


@triton.jit
def candidates(at, n, settings, e):
    """Of the places `e` of a row with `n` tokens: where the codelength begins to look and ends, and the tokens there."""
    mode, window, buffer, min_match, loop_window, strength, escalation = settings
    offset = tl.where(mode == BEFORE_BUFFER, buffer, 0)
    recent = tl.where(mode == NONE, 0, tl.minimum(n, offset + window))  # tokens that the codelength sees
    place = offset + e - 1
    candidate = place < recent - tl.where(mode == SGLANG, buffer, 0)
    return offset, recent, candidate, tokens_at(at, place, candidate)


@triton.jit
def candidate_bits(
    at, settings, e, offset, recent, candidate, token, literal,
    BUFFER_BLOCK: tl.constexpr, FIRST: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """The bits of every candidate."""
    mode, window, buffer, min_match, loop_window, strength, escalation = settings
    match, best = find_matches(
        at, token, e, offset, mode, candidate, buffer, recent, BUFFER_BLOCK, FIRST, UNROLL
    )  # fmt: skip
    if (mode == BEFORE_BUFFER) & (best < buffer * NEARNESS):  # the match before the buffer has no candidate, but counts
        best = tl.maximum(best, match_at(at, offset, buffer, recent, BUFFER_BLOCK) * NEARNESS)
    return codelength_bits(at, token, candidate, mode, offset, e, match, best, min_match, literal)


@triton.jit
def loop_at_end(at, n, settings, e, token, literal, LOOP_BLOCK: tl.constexpr, RUN_BLOCK: tl.constexpr):
    """The token that goes on with the loop at the end, once per place, and the further bits for it; -1 and 0 if none."""
    mode, window, buffer, min_match, loop_window, strength, escalation = settings
    loop_token = tl.zeros_like(token) - 1
    further = tl.full([], 0.0, tl.float32)
    period, run = find_loop(at, tl.minimum(n, loop_window), LOOP_BLOCK, RUN_BLOCK)
    if period > 0:
        further = escalation * (literal + 1) * (run.to(tl.float32) / period.to(tl.float32) - 1)
        loop_token = tokens_at(at, e * 0 + period - 1, e > 0)
    return loop_token, further


@_jit
def _row_kernel(
    logits, row_stride, logit_stride, vocab_size, literal,
    token_ids, slot_stride, stride, slots, capacity, lengths, starts, row_to_slot,
    tail_ids, tail_row_stride, tail_stride, tail_capacity, tail_lengths, newest_ids,
    table, table_stride, exempt_ids,
    EXEMPT_STEPS: tl.constexpr, BUFFER_BLOCK: tl.constexpr, LOOP_BLOCK: tl.constexpr, RUN_BLOCK: tl.constexpr,
    FIRST: tl.constexpr, UNROLL: tl.constexpr, LOWEST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A whole row in one program, for windows of at most `BLOCK` tokens."""
    row = tl.program_id(0)
    settings = read_settings(table, row, table_stride)
    at, n = open_row(
        row, token_ids, slot_stride, stride, slots, capacity, lengths, starts, row_to_slot,
        tail_ids, tail_row_stride, tail_stride, tail_capacity, tail_lengths, newest_ids,
    )  # fmt: skip
    if asks_for_nothing(settings):
        return

    # Every candidate's token and original logit first: they are far away.
    line = table + row * table_stride
    e = 1 + tl.arange(0, BLOCK)
    offset, recent, candidate, token = candidates(at, n, settings, e)
    keep = may_write(token, candidate, vocab_size, line, exempt_ids, EXEMPT_STEPS)
    logits += row.to(tl.int64) * row_stride
    cell = logits + tl.where(keep, token, 0).to(tl.int64) * logit_stride
    min_match = settings[3]
    original = tl.load(cell, mask=keep & (min_match == 1), other=0.0)
    bits = candidate_bits(
        at, settings, e, offset, recent, candidate, token, literal, BUFFER_BLOCK, FIRST, UNROLL
    )  # fmt: skip
    if min_match > 1:  # then only extensions have a value
        original = tl.load(cell, mask=keep & (bits < 0), other=0.0)
    strength = settings[5]
    if LOOP_BLOCK > 0:
        loop_token, further = loop_at_end(at, n, settings, e, token, literal, LOOP_BLOCK, RUN_BLOCK)
        if further > 0:
            bits = tl.where((token == loop_token) & (bits < 0), bits - further, bits)
            alone = may_write(loop_token, e == 1, vocab_size, line, exempt_ids, EXEMPT_STEPS)
            loop_cell = logits + tl.where(alone, loop_token, 0).to(tl.int64) * logit_stride
            loop_original = tl.load(loop_cell, mask=alone, other=0.0)
            tl.debug_barrier()
            lower_logits(loop_cell, loop_original, tl.zeros_like(bits) - strength * further, alone, LOWEST)
    tl.debug_barrier()  # every original has been read before any logit is lowered
    lower_logits(cell, original, strength * bits, keep & (bits < 0), LOWEST)


@_jit
def _find_kernel(
    vocab_size, literal,
    token_ids, slot_stride, stride, slots, capacity, lengths, starts, row_to_slot,
    tail_ids, tail_row_stride, tail_stride, tail_capacity, tail_lengths, newest_ids,
    table, table_stride, exempt_ids,
    places, changes,
    EXEMPT_STEPS: tl.constexpr, BUFFER_BLOCK: tl.constexpr, LOOP_BLOCK: tl.constexpr, RUN_BLOCK: tl.constexpr,
    FIRST: tl.constexpr, UNROLL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """What is to be added to which logits: `BLOCK` candidates per row, then the loop's token; -1 for none."""
    row = tl.program_id(0)
    settings = read_settings(table, row, table_stride)
    at, n = open_row(
        row, token_ids, slot_stride, stride, slots, capacity, lengths, starts, row_to_slot,
        tail_ids, tail_row_stride, tail_stride, tail_capacity, tail_lengths, newest_ids,
    )  # fmt: skip
    line = table + row * table_stride
    e = 1 + tl.arange(0, BLOCK)
    places += row.to(tl.int64) * (BLOCK + 1)
    changes += row.to(tl.int64) * (BLOCK + 1)
    if asks_for_nothing(settings):
        tl.store(places + e - 1, tl.zeros_like(e) - 1)
        tl.store(changes + e - 1, tl.zeros_like(e).to(tl.float32))
        tl.store(places + BLOCK, -1)
        tl.store(changes + BLOCK, 0.0)
        return
    offset, recent, candidate, token = candidates(at, n, settings, e)
    keep = may_write(token, candidate, vocab_size, line, exempt_ids, EXEMPT_STEPS)
    bits = candidate_bits(
        at, settings, e, offset, recent, candidate, token, literal, BUFFER_BLOCK, FIRST, UNROLL
    )  # fmt: skip
    strength = settings[5]
    if LOOP_BLOCK > 0:
        loop_token, further = loop_at_end(at, n, settings, e, token, literal, LOOP_BLOCK, RUN_BLOCK)
        bits = tl.where((token == loop_token) & (bits < 0), bits - further, bits)
        alone = may_write(loop_token, e == 1, vocab_size, line, exempt_ids, EXEMPT_STEPS)
        tl.store(places + BLOCK + e * 0, tl.where(alone, loop_token, -1).to(tl.int32), mask=e == 1)
        tl.store(changes + BLOCK + e * 0, tl.zeros_like(bits) - strength * further, mask=e == 1)
    tl.store(places + e - 1, tl.where(keep & (bits < 0), token, -1).to(tl.int32))
    tl.store(changes + e - 1, strength * bits)


@_jit
def _lower_kernel(
    logits, row_stride, logit_stride, places, changes,
    LOOP_BLOCK: tl.constexpr, LOWEST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Do what `_find_kernel` has found."""
    row = tl.program_id(0)
    e = tl.arange(0, BLOCK)
    places += row.to(tl.int64) * (BLOCK + 1)
    changes += row.to(tl.int64) * (BLOCK + 1)
    token = tl.load(places + e)
    change = tl.load(changes + e)
    logits += row.to(tl.int64) * row_stride
    cell = logits + tl.maximum(token, 0).to(tl.int64) * logit_stride
    original = tl.load(cell, mask=token >= 0, other=0.0)
    if LOOP_BLOCK > 0:
        loop_token = tl.load(places + BLOCK + e * 0)
        loop_change = tl.load(changes + BLOCK + e * 0)
        alone = (loop_token >= 0) & (e == 0)
        loop_cell = logits + tl.maximum(loop_token, 0).to(tl.int64) * logit_stride
        loop_original = tl.load(loop_cell, mask=alone, other=0.0)
        tl.debug_barrier()
        lower_logits(loop_cell, loop_original, loop_change, alone, LOWEST)
    tl.debug_barrier()  # every original has been read before any logit is lowered
    lower_logits(cell, original, change, token >= 0, LOWEST)


@_jit
def _store_kernel(
    token_ids, slot_stride, stride, slots, capacity, lengths, starts, row_to_slot,
    tail_ids, tail_row_stride, tail_stride, tail_capacity, tail_lengths, newest_ids,
):  # fmt: skip
    """Before the two launches for long windows: many programs read a row, so one that stores must have ended."""
    open_row(
        tl.program_id(0), token_ids, slot_stride, stride, slots, capacity, lengths, starts, row_to_slot,
        tail_ids, tail_row_stride, tail_stride, tail_capacity, tail_lengths, newest_ids,
    )  # fmt: skip


@_jit
def _gather_kernel(
    logits, row_stride, logit_stride, vocab_size, literal,
    token_ids, slot_stride, stride, slots, capacity, lengths, starts, row_to_slot,
    tail_ids, tail_row_stride, tail_stride, tail_capacity, tail_lengths, newest_ids,
    table, table_stride, exempt_ids,
    first_row, matches, originals, ranks, loops,
    EXEMPT_STEPS: tl.constexpr, BUFFER_BLOCK: tl.constexpr, LOOP_BLOCK: tl.constexpr, RUN_BLOCK: tl.constexpr,
    FIRST: tl.constexpr, UNROLL: tl.constexpr, LOWEST: tl.constexpr, BLOCK: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """First launch for long windows: matches and original logits of a chunk; the last program looks for the loop."""
    line = tl.program_id(0)
    chunk = tl.program_id(1)
    row = first_row + line
    mode, window, buffer, min_match, loop_window, strength, escalation = read_settings(table, row, table_stride)
    at, n = open_row(
        row, token_ids, slot_stride, stride, slots, capacity, lengths, starts, row_to_slot,
        tail_ids, tail_row_stride, tail_stride, tail_capacity, tail_lengths, None,
    )  # fmt: skip
    logits += row.to(tl.int64) * row_stride
    if chunk == CHUNKS:
        loops += line * 3
        tl.store(loops, -1.0)
        if LOOP_BLOCK > 0:
            period, run = find_loop(at, tl.minimum(n, loop_window), LOOP_BLOCK, RUN_BLOCK)
            if period > 0:
                loop_token = tokens_at(at, period - 1, period > 0)
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
    token = tokens_at(at, place, place < recent)
    candidate = place < recent - tl.where(mode == SGLANG, buffer, 0)
    keep = may_write(token, candidate, vocab_size, table, exempt_ids, 0)
    cell = logits + tl.where(keep, token, 0).to(tl.int64) * logit_stride
    original = tl.load(cell, mask=keep & (min_match == 1), other=0.0)
    match, best = find_matches(
        at, token, e, offset, mode, candidate, buffer, recent, BUFFER_BLOCK, FIRST, UNROLL
    )  # fmt: skip
    if min_match > 1:  # then only extensions have a value
        original = tl.load(cell, mask=keep & (match + 1 >= min_match), other=0.0)
    if (chunk == 0) & (mode == BEFORE_BUFFER) & (best < buffer * NEARNESS):
        best = tl.maximum(best, match_at(at, offset, buffer, recent, BUFFER_BLOCK) * NEARNESS)
    tl.store(ranks + line * CHUNKS + chunk, best)
    here = line.to(tl.int64) * (CHUNKS * BLOCK) + e - 1
    tl.store(matches + here, match.to(tl.int16))
    tl.store(originals + here, original)


@_jit
def _write_kernel(
    logits, row_stride, logit_stride, vocab_size, literal,
    token_ids, slot_stride, stride, slots, capacity, lengths, starts, row_to_slot,
    tail_ids, tail_row_stride, tail_stride, tail_capacity, tail_lengths, newest_ids,
    table, table_stride, exempt_ids,
    first_row, matches, originals, ranks, loops,
    EXEMPT_STEPS: tl.constexpr, BUFFER_BLOCK: tl.constexpr, LOOP_BLOCK: tl.constexpr, RUN_BLOCK: tl.constexpr,
    FIRST: tl.constexpr, UNROLL: tl.constexpr, LOWEST: tl.constexpr, BLOCK: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Second launch for long windows: every original has been read, so the logits may be lowered."""
    line = tl.program_id(0)
    chunk = tl.program_id(1)
    row = first_row + line
    mode, window, buffer, min_match, loop_window, strength, escalation = read_settings(table, row, table_stride)
    at, n = open_row(
        row, token_ids, slot_stride, stride, slots, capacity, lengths, starts, row_to_slot,
        tail_ids, tail_row_stride, tail_stride, tail_capacity, tail_lengths, None,
    )  # fmt: skip
    logits += row.to(tl.int64) * row_stride
    offset = tl.where(mode == BEFORE_BUFFER, buffer, 0)
    recent = tl.where(mode == NONE, 0, tl.minimum(n, offset + window))
    e = 1 + chunk * BLOCK + tl.arange(0, BLOCK)
    loop_token = tl.full([], -1, tl.int64)
    further = tl.full([], 0.0, tl.float32)
    if LOOP_BLOCK > 0:
        loop_token = tl.load(loops + line * 3).to(tl.int64)
        further = tl.load(loops + line * 3 + 1, mask=loop_token >= 0, other=0.0).to(tl.float32)
    if (chunk == 0) & (loop_token >= 0):
        token = tl.zeros_like(e).to(tl.int64) + loop_token
        alone = may_write(token, e == 1, vocab_size, table + row * table_stride, exempt_ids, EXEMPT_STEPS)
        kind: tl.constexpr = originals.dtype.element_ty
        wide: tl.constexpr = (
            tl.float64 if kind == tl.float64 else tl.float32
        )  # float64 does not become bfloat16 at once
        original = tl.zeros([BLOCK], kind) + tl.load(loops + line * 3 + 2).to(wide).to(kind)
        cell = logits + tl.where(alone, token, 0) * logit_stride
        lower_logits(cell, original, tl.zeros([BLOCK], tl.float32) - strength * further, alone, LOWEST)

    place = offset + e - 1
    candidate = place < recent - tl.where(mode == SGLANG, buffer, 0)
    if offset + chunk * BLOCK >= recent:
        return
    c = tl.arange(0, triton.next_power_of_2(CHUNKS))
    best = tl.max(tl.load(ranks + line * CHUNKS + c, mask=c < CHUNKS, other=0), 0)
    here = line.to(tl.int64) * (CHUNKS * BLOCK) + e - 1
    match = tl.load(matches + here, mask=candidate, other=0).to(tl.int32)
    original = tl.load(originals + here, mask=candidate, other=0.0)
    token = tokens_at(at, place, candidate)
    bits = codelength_bits(at, token, candidate, mode, offset, e, match, best, min_match, literal)
    bits = tl.where((token == loop_token) & (bits < 0), bits - further, bits)
    keep = may_write(token, candidate & (bits < 0), vocab_size, table + row * table_stride, exempt_ids, EXEMPT_STEPS)
    cell = logits + tl.where(keep, token, 0).to(tl.int64) * logit_stride
    lower_logits(cell, original, strength * bits, keep, LOWEST)
