"""MLX backend for any device: one sequence per step. Nothing is evaluated here, so a step stays one lazy graph.

Doubling, as in suffix sorting, finds how many tokens from two places of a sequence on are equal: rank every stretch of
1, 2, 4, ... tokens so that equal stretches have equal ranks, then walk down the powers of two. The result is exact.
"""

from __future__ import annotations

import math
from functools import partial

import mlx.core as mx
import numpy as np

from lz_penalty import _packing as col

_UNIT = 1 << 40  # copies are integers in this unit, in which different fractions of the allowed sizes differ


def prepare(arrays, packed, vocab_size, *, ahead=False):
    """Return a step for logits `[1, vocab]` and token ids `[1, n]` of any length; see `lz_penalty.kernels.Backend`."""
    return partial(_step, packed, vocab_size)


def _step(packed, vocab_size, logits, token_ids):
    (settings,), tokens = col.unpack_rows(packed, 1), token_ids[0]
    looped = min(settings.loop_window, tokens.size)
    offset = settings.buffer if settings.mode == col.BEFORE_BUFFER else 0
    recent = min(offset + settings.window, tokens.size)  # tokens that the codelength considers
    reach = max(recent, looped)
    if not reach:
        return logits
    newest_first = tokens[max(0, tokens.size - settings.reach) :][::-1].astype(mx.int64)
    agree = _agreement(newest_first[:reach], reach if looped else settings.buffer)
    literal = math.log2(vocab_size)
    found, bits = _codelengths(newest_first[:recent], agree, settings, offset, literal)
    if settings.gate_window:
        bits = bits * _gate_opening(newest_first, settings)
    if looped:
        token, further = _escalation(newest_first, agree, looped, settings.escalation * (literal + 1))
        bits = mx.concatenate([mx.where(found == token, bits - further, bits), -further])
        found = mx.concatenate([found, token])
    exempt = packed.exempt_ids[settings.exempt_begin : settings.exempt_end]
    return _written(logits, found, settings.strength * bits, exempt, vocab_size) if found.size else logits


def _written(logits, tokens, change, exempt, vocab_size):
    """Apply every token's smallest change, in float32. Finite logits stay finite; others and exempt ones stay as they are."""
    keep = (tokens >= 0) & (tokens < vocab_size) & (change < 0)
    cell = mx.where(keep, tokens, 0)
    limits = mx.finfo(logits.dtype)
    new = mx.clip(logits[0, cell].astype(mx.float32) + change, limits.min, limits.max)
    new = mx.where(keep, new.astype(logits.dtype), math.inf)
    penalised = mx.where(mx.isfinite(logits), logits.at[0, cell].minimum(new), logits)
    if (exempt := exempt[exempt < vocab_size]).size:
        penalised[:, mx.array(exempt)] = logits[:, mx.array(exempt)]
    return penalised


def _codelengths(recent, agree, settings, offset, literal):
    """Return candidate tokens and their bits relative to a literal; 0 where there is no value."""
    size, sglang, adjacent = recent.size, settings.mode == col.SGLANG, offset == 0
    count = size - offset - (settings.buffer if sglang else 0)
    if count <= 0:
        return recent[:0], mx.zeros(0)
    source = mx.arange(max(offset, 1), size)  # where the source of a match begins; 0 is the context itself
    match = mx.minimum(mx.minimum(agree[max(offset, 1) : size], settings.buffer), size - source)
    longest = match.max() if match.size else mx.array(0)
    match = mx.concatenate([match if adjacent else match[1:], mx.zeros(1, dtype=match.dtype)])[:count]
    tokens = recent[offset : offset + count]
    e = mx.arange(1, count + 1)
    distance = e.astype(mx.float32)
    if sglang:
        length = (match + 1).astype(mx.float32)
        return tokens, mx.minimum((mx.log2(distance + 1) + mx.log2(length)) / length - literal, 0)

    least = settings.min_match
    value = mx.log2(distance) if least == 1 else mx.full(count, math.inf)
    length = mx.maximum(longest, 1).astype(mx.float32)
    if adjacent:
        grown = mx.broadcast_to(mx.log2((length + 1) / length) - 1, (count,))
    else:
        grown = mx.log2(1 + (distance - 1) / (length * (distance + length))) - 1
    extends = (match == longest) & (longest >= max(1, least - 1)) & (e >= (1 if adjacent else 2))
    return tokens, mx.minimum(mx.where(extends, grown, value) - literal, 0)


def _gate_opening(newest_first, settings):
    """Return which part of every codelength is charged: the definition's `gate_opening` of its `copy_share`."""
    n, size, window = newest_first.size, max(2, settings.min_match), settings.window
    recent = min(settings.gate_window, n)
    if n < max(settings.gate_from, size):
        return 0.0
    rank, length = _dense_ranks(newest_first[: settings.gate_window + window + size - 1]), 1
    while length < size:
        step = min(length, size - length)
        rank = _dense_ranks(rank[:-step] * n + rank[step:])
        length += step
    order = mx.sort(rank * n + mx.arange(rank.size))
    rank, place = order // n, order % n
    copied = (rank[1:] == rank[:-1]) & (place[1:] - place[:-1] <= window) & (place[:-1] < recent)
    shares = np.arange(recent + 1) / recent  # of every possible count; MLX has no float64 on a GPU
    with np.errstate(over="ignore"):
        openings = np.clip((shares - settings.gate_low) / (settings.gate_high - settings.gate_low), 0, 1)
    return mx.array(openings.astype(np.float32))[copied.sum()]


def _escalation(newest_first, agree, looped, weight):
    """Return the token that would continue the loop of `loops.trailing_loop`, and its further bits; 0 without a loop."""
    periods = looped // 3
    if not periods:
        return newest_first[:1], mx.zeros(1)
    period = mx.arange(1, periods + 1).astype(mx.int64)
    run = mx.minimum(agree[1 : periods + 1], looped - period)
    copies = mx.where(run >= 2 * period, run * _UNIT // period, 0)
    best = copies.max()
    smallest = mx.where(copies == best, period, periods).min(keepdims=True)
    further = (run[smallest - 1] / smallest - 1).astype(mx.float32) * weight
    return newest_first[smallest - 1], mx.where(best > 0, further, 0.0)


def _agreement(newest_first, limit):
    """Return how many tokens from each place on equal the first tokens `[reach]`; exact up to `limit`."""
    reach = newest_first.size
    ranks = [_dense_ranks(newest_first)]
    while (1 << len(ranks)) <= min(limit, reach):
        size = 1 << (len(ranks) - 1)
        second = mx.concatenate([ranks[-1][size:] + 1, mx.zeros(min(size, reach), dtype=mx.int64)])[:reach]
        ranks.append(_dense_ranks(ranks[-1] * (reach + 1) + second))
    place = mx.arange(reach).astype(mx.int64)
    agree = mx.zeros(reach, dtype=mx.int64)
    for level in range(len(ranks) - 1, -1, -1):
        there = place + agree
        inside = there + (1 << level) <= reach
        equal = ranks[level][mx.minimum(agree, reach - 1)] == ranks[level][mx.minimum(there, reach - 1)]
        agree = agree + mx.where(inside & equal, 1 << level, 0)
    return agree


def _dense_ranks(keys):
    """Return ranks `[reach]`: two places have equal ranks exactly if their keys are equal."""
    order = mx.argsort(keys)
    ordered = keys[order]
    new = mx.concatenate([mx.zeros(1, dtype=mx.int64), (ordered[1:] != ordered[:-1]).astype(mx.int64)])
    return mx.put_along_axis(mx.zeros_like(keys), order, mx.cumsum(new), axis=0)
