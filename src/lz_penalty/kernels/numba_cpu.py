"""Numba backend: one compiled pass per row, in time linear in the window (Z-function) whatever the vocabulary."""

from __future__ import annotations

import secrets
from functools import partial

import numpy as np

from lz_penalty import _packing as col
from lz_penalty.config import MAX_BUFFER, MAX_WINDOW
from lz_penalty.kernels import on_numpy
from lz_penalty.kernels._compiling import compiled

_NOTHING = np.empty(0, dtype=np.int64)
_NO_TAIL = np.empty((0, 0), dtype=np.int64)
_LOG2 = np.log2(np.maximum(1, np.arange(MAX_WINDOW + MAX_BUFFER + 2)))  # of every possible distance and length
_MULTIPLIER = np.uint64(secrets.randbits(64) | 1)  # of the hash: nobody can prepare a text with many collisions
_LARGEST = {np.dtype(kind): float(np.finfo(kind).max) for kind in (np.float32, np.float64)}


def prepare(arrays, packed, vocab_size, *, ahead=False):
    """Return a step for arrays like these; see `lz_penalty.kernels.Backend`."""
    table = packed.table
    settings = table, table.view(np.float32), table.view(np.float64), packed.exempt_ids, vocab_size
    sizes = packed.reach, packed.max_gate_window > 0

    def penalise(logits, token_ids, lengths, starts, row_to_slot, tail_ids, tail_lengths):
        tail = _NO_TAIL if tail_ids is None else tail_ids.astype(np.int64, copy=False)
        vectors = _int64(lengths), _int64(starts), _int64(row_to_slot), tail, _int64(tail_lengths)
        _apply(logits, token_ids, *vectors, *settings, *sizes, _LARGEST[logits.dtype], _LOG2, _MULTIPLIER)

    return on_numpy(penalise)


def _int64(vector):
    """Return the vector as int64, empty where there is none: with one type, fewer variants are compiled."""
    return _NOTHING if vector is None else vector.astype(np.int64, copy=False)


@compiled
def _apply(
    logits, token_ids, lengths, starts, row_to_slot, tail_ids, tail_lengths,
    table, floats, doubles, exempt_ids, vocab_size, reach, gated, largest, log2, multiplier,
):  # fmt: skip
    reach = min(reach, token_ids.shape[1] + tail_ids.shape[1])
    newest_first = np.empty(reach, dtype=np.int64)
    run = np.empty(reach + 1, dtype=np.int32)
    tokens = np.empty(reach + 1, dtype=np.int64)
    new = np.empty(reach + 1, dtype=logits.dtype)
    older = np.empty(reach if gated else 0, dtype=np.int32)
    heads = np.empty(1 << int(np.log2(max(1, reach)) + 1) if gated else 0, dtype=np.int32)
    literal = np.log2(vocab_size)

    for row in range(logits.shape[0]):
        setting = row if table.shape[0] > 1 else 0
        mode, window, buffer = table[setting, col.MODE], table[setting, col.WINDOW], table[setting, col.BUFFER]
        loop_window = table[setting, col.LOOP_WINDOW]
        if mode == col.NONE and loop_window == 0:
            continue

        # Copy the end of the context, newest token first.
        slot = row_to_slot[row] if len(row_to_slot) else row
        end = lengths[row] if len(lengths) else token_ids.shape[1]
        begin = starts[row] if len(starts) else 0
        drafts = 0
        if tail_ids.shape[0]:
            drafts = tail_lengths[row] if len(tail_lengths) else tail_ids.shape[1]
        gate_window = table[setting, col.GATE_WINDOW]
        n = min(end - begin + drafts, max(gate_window + window + buffer, loop_window))
        for i in range(min(n, drafts)):
            newest_first[i] = tail_ids[row, drafts - 1 - i]
        for i in range(drafts, n):
            newest_first[i] = token_ids[slot, end + drafts - 1 - i]

        offset = buffer if mode == col.BEFORE_BUFFER else 0
        recent = 0 if mode == col.NONE else min(n, offset + window)  # tokens that the codelength considers
        looped = min(n, loop_window)
        period, length = _trailing_runs(newest_first, recent, looped, run)
        loop_token, further = -1, 0.0
        if period:
            loop_token = newest_first[period - 1]
            further = floats[setting, col.ESCALATION] * (literal + 1) * (length / period - 1)

        min_match = table[setting, col.MIN_MATCH]
        opening = 1.0
        if gate_window:
            opening = _gate_opening(
                newest_first, n, run, recent, gate_window, table[setting, col.GATE_FROM], window, max(2, min_match),
                doubles[setting, col.GATE_LOW // 2], doubles[setting, col.GATE_HIGH // 2], heads, older, multiplier,
            )  # fmt: skip
            if opening == 0.0:
                recent = 0  # the codelength considers nothing

        # Compute the new logit of every candidate from the original logits; then write the smallest of each token.
        strength = floats[setting, col.STRENGTH]
        exempt = exempt_ids[table[setting, col.EXEMPT_BEGIN] : table[setting, col.EXEMPT_END]]
        longest = 0
        for source in range(max(offset, 1), recent):  # a match is a run inside the window, of a buffer at most
            run[source] = min(run[source], buffer, recent - source)
            longest = max(longest, run[source])
        extended = longest >= 1 and longest + 1 >= min_match

        count = 0
        candidates = recent - offset - (buffer if mode == col.SGLANG else 0)
        for e in range(1, candidates + 1):
            token = newest_first[offset + e - 1]
            if token < 0 or token >= vocab_size:
                continue
            source = offset + e
            match = run[source] if source < recent else 0
            if mode == col.SGLANG:
                value = max(0.0, (log2[e + 1] + log2[match + 1]) / (match + 1))
            elif extended and match == longest and (mode == col.ADJACENT or e >= 2):
                value = log2[longest + 1] - log2[longest] - 1
                if mode == col.BEFORE_BUFFER:
                    value += log2[e + longest - 1] - log2[e + longest]
            elif min_match == 1:
                value = log2[e]
            else:
                continue
            bits = min(value - literal, 0.0) * opening
            if token == loop_token:
                bits -= further
            if len(exempt) and _contains(exempt, token):
                continue
            tokens[count] = token
            new[count] = _moved(logits[row, token], strength * bits, largest)
            count += 1
        if 0 <= loop_token < vocab_size and not _contains(exempt, loop_token):
            tokens[count] = loop_token
            new[count] = _moved(logits[row, loop_token], -strength * further, largest)
            count += 1
        for i in range(count):
            if new[i] < logits[row, tokens[i]]:
                logits[row, tokens[i]] = new[i]


@partial(compiled, inline="always")
def _moved(original, change, largest):
    """Return `original + change`. A finite logit stays finite; -inf and NaN stay as they are."""
    return max(original + change, -largest) if np.isfinite(original) else original


@compiled
def _contains(ascending, token):
    i = np.searchsorted(ascending, token)
    return i < len(ascending) and ascending[i] == token


@compiled
def _trailing_runs(newest_first, recent, looped, run):
    """Fill `run[p]` for the periods `p` below `recent`, and find the loop among the last `looped` tokens.

    This is `loops.trailing_runs` and `loops.trailing_loop` in one pass. It returns the period and run of the loop with
    the most copies, or 0 and 0. A run that counts rules out every other period up to its own length.
    """
    n = max(recent, looped)
    period, longest, ruled_out = 0, 0, 0
    left = right = 0
    for p in range(1, max(recent, looped // 3 + 1)):
        if p >= right and newest_first[p] != newest_first[0]:  # true for most of ordinary text
            run[p] = 0
            continue
        length = min(right - p, run[p - left]) if p < right else 0
        while p + length < n and newest_first[length] == newest_first[p + length]:
            length += 1
        run[p] = length
        if p + length > right:
            left, right = p, p + length
        inside = min(length, looped - p)
        if inside >= 2 * p and p > ruled_out:
            ruled_out = inside
            if inside * period > longest * p or period == 0:
                period, longest = p, inside
        if p >= recent and ruled_out >= looped // 3:
            break
    return period, longest


@compiled
def _gate_opening(
    newest_first, n, run, recent, gate_window, gate_from, window, size, low, high, heads, older, multiplier
):
    """Return which part of every codelength is charged: the definition's `gate_opening` of its `copy_share`.

    In a loop, one run contains nearly all recent tokens, and the copy share need not be known to see that the gate is open.
    """
    if n < gate_from:
        return 0.0
    longest = 0
    for p in range(1, min(window + 1, recent)):
        longest = max(longest, run[p])
    share = max(0, min(n, gate_window, longest - size + 1)) / min(n, gate_window)
    if share < high:
        share = _copy_share(newest_first, n, gate_window, window, size, heads, older, multiplier)
    return min(1.0, max(0.0, (share - low) / (high - low)))


@compiled
def _copy_share(newest_first, n, gate_window, window, size, heads, older, multiplier):
    """Return the copy share, as `reference.copy_share` does, in time linear in both windows.

    Each n-gram is put into a chain of n-grams with equal hash values, the oldest first. `heads` contains the newest one
    of every chain, `older` the next one of each. The hash of an n-gram follows from that of the n-gram before it.
    """
    recent = min(n, gate_window)
    n = min(n, gate_window + window + size - 1)
    if n < size:
        return 0.0
    bits = 1
    while 1 << bits < n:
        bits += 1
    heads[: 1 << bits] = -1
    shift = np.uint64(64 - bits)
    power, key = np.uint64(1), np.uint64(0)
    for i in range(n - size + 1, n):
        key += power * multiplier * np.uint64(newest_first[i])
        power *= multiplier
    power *= multiplier
    copied = 0
    for i in range(n - size, -1, -1):
        key = multiplier * (np.uint64(newest_first[i]) + key)
        bucket = key >> shift
        other = heads[bucket]
        older[i] = other
        heads[bucket] = i
        key -= power * np.uint64(newest_first[i + size - 1])
        if i < recent:
            while other >= 0 and other - i <= window:
                k = 0
                while k < size and newest_first[i + k] == newest_first[other + k]:
                    k += 1
                if k == size:
                    copied += 1
                    break
                other = older[other]
    return copied / recent
