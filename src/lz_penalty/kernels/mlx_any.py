"""MLX backend: one sequence, any device, nothing is evaluated here: the step stays one lazy graph.

How far two places of a sequence agree is found by doubling, as in suffix sorting: rank every stretch of 1, 2, 4, ...
tokens so that equal stretches have equal ranks, then walk down the powers of two. Exact, and log-many steps.
"""

from __future__ import annotations

import math

import mlx.core as mx

_UNIT = 1 << 40  # copies as integers, in which any two fractions of sizes that are allowed differ


def penalise(logits, tokens, config, vocab_size):
    """Penalised logits `[1, vocab]` of the context `tokens [n]`; MLX arrays are values, so nothing is done in place."""
    before = config.effective_lookback == "before_buffer"
    coded, looped = config.min_match_length is not None, min(config.loop_window, tokens.size) * bool(config.escalation)
    offset = config.buffer_size if before else 0
    recent = min(offset + config.window_size, tokens.size) * coded  # tokens that the codelength sees
    reach = max(recent, looped)
    if not reach or not config.strength:
        return logits
    newest_first = tokens[tokens.size - reach :][::-1].astype(mx.int64)
    agree = _agreement(newest_first, reach if looped else config.buffer_size)
    literal = math.log2(vocab_size)
    found, bits = _codelengths(newest_first[:recent], agree, config, offset, literal)
    if looped:
        token, further = _escalation(newest_first, agree, looped, config.escalation * (literal + 1))
        bits = mx.concatenate([mx.where(found == token, bits - further, bits), -further])
        found = mx.concatenate([found, token])
    return _written(logits, found, bits, config, vocab_size) if found.size else logits


def _written(logits, tokens, bits, config, vocab_size):
    """Every token's smallest change, in float32; finite logits stay finite, others and exempt ones as they are."""
    keep = (tokens >= 0) & (tokens < vocab_size) & (bits < 0)
    cell = mx.where(keep, tokens, 0)
    limits = mx.finfo(logits.dtype)
    new = mx.clip(logits[0, cell].astype(mx.float32) + config.strength * bits, limits.min, limits.max)
    new = mx.where(keep, new.astype(logits.dtype), math.inf)
    penalised = mx.where(mx.isfinite(logits), logits.at[0, cell].minimum(new), logits)
    exempt = [token for token in config.exempt_token_ids if token < vocab_size]
    if exempt:
        exempt = mx.array(exempt)
        penalised[:, exempt] = logits[:, exempt]
    return penalised


def _codelengths(recent, agree, config, offset, literal):
    """Candidate tokens and their bits relative to a literal; 0 where there is no value."""
    size, sglang, adjacent = recent.size, config.formula == "sglang", offset == 0
    count = size - offset - (config.buffer_size if sglang else 0)
    if count <= 0:
        return recent[:0], mx.zeros(0)
    source = mx.arange(max(offset, 1), size)  # where the source of a match begins; 0 is the context itself
    match = mx.minimum(mx.minimum(agree[max(offset, 1) : size], config.buffer_size), size - source)
    longest = match.max() if match.size else mx.array(0)
    match = mx.concatenate([match if adjacent else match[1:], mx.zeros(1, dtype=match.dtype)])[:count]
    tokens = recent[offset : offset + count]
    e = mx.arange(1, count + 1)
    distance = e.astype(mx.float32)
    if sglang:
        length = (match + 1).astype(mx.float32)
        return tokens, mx.minimum((mx.log2(distance + 1) + mx.log2(length)) / length - literal, 0)

    least = config.min_match_length
    value = mx.log2(distance) if least == 1 else mx.full(count, math.inf)
    length = mx.maximum(longest, 1).astype(mx.float32)
    if adjacent:
        grown = mx.broadcast_to(mx.log2((length + 1) / length) - 1, (count,))
    else:
        grown = mx.log2(1 + (distance - 1) / (length * (distance + length))) - 1
    extends = (match == longest) & (longest >= max(1, least - 1)) & (e >= (1 if adjacent else 2))
    return tokens, mx.minimum(mx.where(extends, grown, value) - literal, 0)


def _escalation(newest_first, agree, looped, weight):
    """`loops.trailing_loop`: the token that would continue the loop and its further bits `[1]`; 0 without a loop."""
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
    """How many tokens from each place on equal the first tokens `[reach]`; right up to at least `limit`."""
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
    """Ranks `[reach]`: two places have equal ranks exactly if their keys are equal."""
    order = mx.argsort(keys)
    ordered = keys[order]
    new = mx.concatenate([mx.zeros(1, dtype=mx.int64), (ordered[1:] != ordered[:-1]).astype(mx.int64)])
    return mx.put_along_axis(mx.zeros_like(keys), order, mx.cumsum(new), axis=0)
