"""The loop at the end of a context in the Triton kernels. Names: see `_parts`."""

import triton
import triton.language as tl

from lz_penalty.kernels.triton._parts import FAR, tokens_at


@triton.jit
def run_length(at, period, n, BLOCK: tl.constexpr):
    """Return how many of the newest tokens equal the token `period` before them."""
    run = 0
    going = True
    while going:
        i = tl.arange(0, BLOCK)
        inside = run + i + period < n
        equal = inside & (tokens_at(at, run + i, inside) == tokens_at(at, run + i + period, inside))
        step = tl.min(tl.where(equal, BLOCK, i), 0)
        run += step
        going = step == BLOCK
    return run


@triton.jit
def agree(at, p, valid, newer, older):
    """Return which longer periods can count, given the two places, before the end, at which a run ended that did not count.

    Such a run is shorter than two copies, so both places are within the three copies that a longer period needs. Tokens that
    are so many places apart must be equal. One of the two tokens is often a mistake in a loop, and a mistake rules out most
    periods.
    """
    copied = valid & (older >= p)
    copies = valid & (older < 2 * p)
    token = tokens_at(at, older, older >= 0)
    return (
        (tokens_at(at, newer, newer >= 0) == tokens_at(at, newer + p, valid))
        & ((tokens_at(at, older - p, copied) == token) | ~copied)
        & ((token == tokens_at(at, older + p, copies)) | ~copies)
    )


@triton.jit
def find_loop(at, n, BLOCK: tl.constexpr, RUN_BLOCK: tl.constexpr):
    """Return the period and run of the loop with the most copies at the end, or 0 and 0, as `loops.trailing_loop` does.

    Periods that repeat the newest four tokens are measured one by one, in ascending order. A run that counts rules out
    every period up to its own length. After a run that does not count, `agree` leaves few of the others. So a text needs
    few runs, which take most of the time.
    """
    best_period = 0
    best_run = 0
    first = 1
    while first <= n // 3:
        p = first + tl.arange(0, BLOCK)
        first += BLOCK
        valid = p <= n // 3
        alive = valid
        for k in tl.static_range(4):
            equal = tokens_at(at, p + k, valid & (p + k < n)) == tokens_at(at, k, k < n)
            alive = alive & (equal | (k >= 2 * p))
        period = tl.min(tl.where(alive, p, FAR), 0)
        while period < FAR:
            run = run_length(at, period, n, RUN_BLOCK)
            above = period
            if run >= 2 * period:
                above = run
                if (best_period == 0) | (tl.cast(run, tl.int64) * best_period > tl.cast(best_run, tl.int64) * period):
                    best_period = period
                    best_run = run
                first = tl.maximum(first, run + 1)
            else:
                alive = alive & agree(at, p, alive, run, run + period)
            alive = alive & (p > above)
            period = tl.min(tl.where(alive, p, FAR), 0)
    return best_period, best_run


@triton.jit
def further_bits(period, run, escalation, literal):
    """Return the bits that escalation adds to the token that would continue a loop."""
    return escalation * (literal + 1) * (run.to(tl.float32) / period.to(tl.float32) - 1)


@triton.jit
def loop_at_end(at, settings, e, n, token, literal, LOOP_BLOCK: tl.constexpr, RUN_BLOCK: tl.constexpr):
    """Return the token that would continue the loop at the end, once per place, and its further bits; -1 and 0 if none."""
    loop_token = tl.zeros_like(token) - 1
    further = tl.full([], 0.0, tl.float32)
    period, run = find_loop(at, tl.minimum(n, settings.loop_window), LOOP_BLOCK, RUN_BLOCK)
    if period > 0:
        further = further_bits(period, run, settings.escalation, literal)
        loop_token = tokens_at(at, e * 0 + period - 1, e > 0)
    return loop_token, further
