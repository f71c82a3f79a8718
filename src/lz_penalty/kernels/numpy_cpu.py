"""NumPy backend: vectorised over the window, one row at a time. It needs no other package and is the slowest."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from lz_penalty import _packing as col
from lz_penalty.kernels import on_numpy


def prepare(arrays, packed, vocab_size, *, ahead=False):
    """Return a step for arrays like these; see `lz_penalty.kernels.Backend`."""
    return on_numpy(partial(_penalise, packed, vocab_size))


def _penalise(packed, vocab_size, logits, token_ids, lengths, starts, row_to_slot, tail_ids, tail_lengths):
    for row, settings in enumerate(col.unpack_rows(packed, logits.shape[0])):
        if settings.mode == col.NONE and not settings.loop_window:
            continue
        slot = row if row_to_slot is None else row_to_slot[row]
        end = token_ids.shape[1] if lengths is None else int(lengths[row])
        begin = 0 if starts is None else int(starts[row])
        context = token_ids[slot, max(begin, end - settings.reach) : end]
        if tail_ids is not None:
            drafts = tail_ids[row] if tail_lengths is None else tail_ids[row, : tail_lengths[row]]
            context = np.concatenate([context, drafts])
        exempt_ids = packed.exempt_ids[settings.exempt_begin : settings.exempt_end]
        _penalise_row(logits[row], np.ascontiguousarray(context[::-1]), settings, exempt_ids, vocab_size)


def _penalise_row(logits, newest_first, settings, exempt_ids, vocab_size):
    literal = math.log2(vocab_size)
    opening = _gate_opening(newest_first, settings) if settings.gate_window else 1.0
    tokens, bits = _codelengths(newest_first, settings, literal) if opening else (newest_first[:0], np.empty(0))
    bits *= opening
    if settings.loop_window and (loop := _trailing_loop(newest_first[: settings.loop_window])):
        period, run = loop
        token = newest_first[period - 1]
        further = settings.escalation * (literal + 1) * (run / period - 1)
        bits = np.append(np.where(tokens == token, bits - further, bits), -further)
        tokens = np.append(tokens, token)

    keep = (tokens >= 0) & (tokens < vocab_size)
    if len(exempt_ids):
        keep &= ~np.isin(tokens, exempt_ids)
    _write(logits, tokens[keep], bits[keep] * settings.strength)


def _codelengths(newest_first, settings, literal):
    """Return the token and the bits relative to a literal of every occurrence in the window that has a value."""
    mode, window, buffer, min_match, *_ = settings
    offset = buffer if mode == col.BEFORE_BUFFER else 0
    recent = newest_first[: offset + window]
    if mode == col.NONE or len(recent) <= offset:
        return newest_first[:0], np.empty(0)
    tokens = recent[offset:]
    distance = np.arange(1, len(tokens) + 1)
    matches = _match_lengths(recent, offset, buffer)
    if mode == col.SGLANG:
        count = max(0, len(tokens) - buffer)
        length = 1 + matches[1 : count + 1]
        value = np.maximum(0.0, (np.log2(distance[:count] + 1) + np.log2(length)) / length)
        return tokens[:count], np.minimum(value - literal, 0.0)

    value = np.log2(distance) if min_match == 1 else np.full(len(tokens), np.inf)
    longest = int(matches.max())
    if longest >= 1 and longest + 1 >= min_match:
        extends = matches[1:] == longest
        if mode == col.ADJACENT:
            value[extends] = math.log2((longest + 1) / longest) - 1
        else:
            extends[0] = False  # the paper's condition d >= l + 2
            e = distance[extends]
            value[extends] = np.log2(1 + (e - 1) / (longest * (e + longest))) - 1
    found = value < np.inf
    return tokens[found], np.minimum(value[found] - literal, 0.0)


def _gate_opening(newest_first, settings):
    """Return which part of every codelength is charged: the definition's `gate_opening` of its `copy_share`.

    N-grams get ranks, equal ones equal ranks: first those of one token, then those of two, four and so on.
    """
    n, size = len(newest_first), max(2, settings.min_match)
    recent = min(settings.gate_window, n)
    if n < max(settings.gate_from, size):
        return 0.0
    newest_first = newest_first[: settings.gate_window + settings.window + size - 1]
    rank, length = np.unique(newest_first, return_inverse=True)[1], 1
    while length < size:
        step = min(length, size - length)
        rank = np.unique(rank[:-step] * n + rank[step:], return_inverse=True)[1]
        length += step
    order = np.argsort(rank, kind="stable")
    nearer, farther = order[:-1], order[1:]  # two occurrences of an n-gram without a third between them, or two n-grams
    copied = (rank[nearer] == rank[farther]) & (farther - nearer <= settings.window) & (nearer < recent)
    opening = (int(copied.sum()) / recent - settings.gate_low) / (settings.gate_high - settings.gate_low)
    return min(1.0, max(0.0, opening))


def _match_lengths(recent, offset, buffer):
    """Return for each distance from 0 how many tokens before it (at most `buffer`) equal the end of the context."""
    lengths = np.zeros(len(recent) - offset + 1, dtype=np.int64)
    alive = np.arange(max(offset, 1), len(recent))  # where the source of the match begins; 0 is the context itself
    for k in range(min(buffer, len(recent))):
        alive = alive[: np.searchsorted(alive, len(recent) - k)]
        alive = alive[recent[alive + k] == recent[k]]
        if not len(alive):
            break
        lengths[alive - offset] = k + 1
    return lengths


def _trailing_loop(newest_first):
    """Return the period and run of the loop with the most copies, or `None`, as `loops.trailing_loop` does.

    A run that counts rules out every other period up to its own length (see `lz_penalty.loops`).
    """
    n = len(newest_first)
    candidates = np.flatnonzero(newest_first[1 : n // 3 + 1] == newest_first[0]) + 1 if n >= 3 else ()
    best, ruled_out = None, 0
    for period in candidates:
        if period <= ruled_out:
            continue
        period = int(period)
        need = 2 * period
        if not np.array_equal(newest_first[:need], newest_first[period : period + need]):
            continue
        differ = newest_first[need : n - period] != newest_first[need + period :]
        run = need + (int(differ.argmax()) if differ.any() else len(differ))
        if best is None or run * best[0] > best[1] * period:
            best = period, run
        ruled_out = run
    return best


def _write(logits, tokens, change):
    """Set `logits[t] = min(logits[t], original + change)`, computed in float32 or better. Finite logits stay finite."""
    original = logits[tokens].astype(np.promote_types(logits.dtype, np.float32))
    limits = np.finfo(logits.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        new = np.clip(original + change, limits.min, limits.max)
        new = np.where(np.isfinite(original), new, original)
        np.minimum.at(logits, tokens, new.astype(logits.dtype))
