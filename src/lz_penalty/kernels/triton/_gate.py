"""The gate in the Triton kernels: which of the last tokens are copied, and which part of the codelengths is charged.

A row may keep, from one step to the next, its last `SPAN` tokens and which of them are copied, and

    about = number of tokens, window, length of n-grams, gate window

A step uses this only if its context is the kept one and one more token: it compares the tokens. So no result depends on
what was kept, whatever an engine does to a history between two steps. In these ring buffers, a token's index follows from
its position in the context, so that everything can be loaded at the same time.
"""

import triton
import triton.language as tl

from lz_penalty import _packing as col
from lz_penalty.kernels.triton._parts import candidate_bits, tokens_at, tokens_before

GATE_LOW, GATE_HIGH = tl.constexpr(col.GATE_LOW), tl.constexpr(col.GATE_HIGH)
MARGIN = tl.constexpr(1e-12)  # above any error of rounding
SHORT = tl.constexpr(4)  # tokens of an n-gram that are loaded at the same time
WORD = tl.constexpr(32)  # positions whose bits share one integer
PART = tl.constexpr(8)  # positions that are compared together


@triton.jit
def either(a, b):
    """Return the bits that one of two numbers has, or both."""
    return a | b


@triton.jit
def compare_part(at, n, q, missing, word, k, size):
    """Compare `PART` tokens from place `k` on with the tokens `q` places before them, the oldest first.

    Args:
        at: where the tokens are.
        n: how many there are.
        q: distances.
        missing: for each distance, how many more equal tokens complete an n-gram, less one: below 0 if it is complete.
        word: for each distance, a bit per position, 1 if it ends an n-gram that also ends at this distance before it.
        k: the place of the newest token.
        size: the length of the n-grams.

    Returns:
        `missing` and `word` after these tokens. The newest position is in bit 0.
    """
    here = ()
    want = ()
    for u in tl.static_range(PART):  # all loads come first, so that the device does them at the same time
        here = here + (tokens_before(at, q, k, u, k + u + q < n),)
        want = want + (tokens_at(at, k + u, k + u < n),)
    for i in tl.static_range(PART):
        equal = (here[PART - 1 - i] == want[PART - 1 - i]) & (k + (PART - 1 - i) + q < n)
        missing = tl.where(equal, missing - 1, size - 1)
        word = (word << 1) | (missing.to(tl.uint32, bitcast=True) >> 31)
    return missing, word


@triton.jit
def count_bits(word, positions):
    """Return how many of the lowest `positions` bits of a word are 1."""
    kept = tl.minimum(tl.maximum(positions, 0), WORD).to(tl.int64)
    x = word.to(tl.int64) & ((tl.full([], 1, tl.int64) << kept) - 1)
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return ((x * 0x01010101 >> 24) & 0xFF).to(tl.int32)


@triton.jit
def deciding(settings, n):
    """Return the length of n-grams, the number of recent positions, and how many tokens decide which of them are copied."""
    size = tl.maximum(settings.min_match, 2)
    recent = tl.minimum(n, settings.gate_window)
    return size, recent, tl.minimum(n, recent + settings.window + size - 1)


@triton.jit
def count_copied(at, settings, n, q, words, kept, SPAN: tl.constexpr):
    """Return how many of the recent positions are copied from one of these distances.

    With `words`, store a bit per position instead, so that another launch can combine the distances of all chunks. With
    `kept`, also store what the next step needs.
    """
    size, recent, _ = deciding(settings, n)
    missing = tl.zeros_like(q) + size - 1
    word = tl.zeros_like(q).to(tl.uint32)
    copied = 0
    k = (recent + size - 2) // PART * PART
    while k >= 0:
        missing, word = compare_part(at, n, q, missing, word, k, size)
        if k % WORD == 0:
            found = tl.reduce(tl.where(q <= settings.window, word, 0), 0, either)
            if words is None:
                copied += count_bits(found, recent - k)
                if len(kept) > 0:
                    place = k + tl.arange(0, WORD)
                    flag = (found >> tl.arange(0, WORD).to(tl.uint32)) & 1
                    index = (n - 1 - place) & (SPAN - 1)
                    tl.store(kept[1] + index, flag.to(tl.int8), mask=place < tl.minimum(recent, SPAN))
            else:
                tl.store(words + k // WORD, found.to(tl.int32, bitcast=True), mask=k < recent)
        k -= PART
    return copied


@triton.jit
def double_at(settings_row, column):
    """Load a setting that takes two columns."""
    low = tl.load(settings_row + column).to(tl.uint32, bitcast=True).to(tl.int64)
    return ((tl.load(settings_row + column + 1).to(tl.int64) << 32) | low).to(tl.float64, bitcast=True)


@triton.jit
def gate_opening(copied, settings, n, settings_row):
    """Return which part of every codelength is charged, if this many of the recent positions are copied.

    A division takes long, and the gate is mostly closed or open by far.
    """
    recent = tl.maximum(tl.minimum(n, settings.gate_window), 1).to(tl.float64)
    low = double_at(settings_row, GATE_LOW)
    high = double_at(settings_row, GATE_HIGH)
    opening = tl.where(copied > high * recent, 1.0, 0.0).to(tl.float64)
    if (copied >= low * recent * (1 - MARGIN)) & (copied <= high * recent * (1 + MARGIN)):
        share = copied.to(tl.float64) / recent
        opening = tl.where(share >= high, 1.0, 0.0).to(tl.float64)
        if (share > low) & (share < high):
            opening = (share - low) / (high - low)
    return opening.to(tl.float32)


@triton.jit
def is_gated(settings, n):
    """Return whether a row has a gate, and enough tokens that the gate can open."""
    return (settings.gate_window > 0) & (n >= settings.gate_from)


@triton.jit
def kept_of(row, kept_tokens, kept_flags, kept_about, SPAN: tl.constexpr):
    """Return what a row has kept; nothing if the step keeps nothing."""
    if SPAN == 0:
        return ()
    else:
        begin = row.to(tl.int64) * SPAN
        return (kept_tokens + begin, kept_flags + begin, kept_about + row * 4)


@triton.jit
def kept_count(at, settings, n, kept, SPAN: tl.constexpr):
    """Return how many of the recent positions are copied, from what the row has kept; -1 if that is of no use here.

    Only the newest position is new. The others were copied or not before, if no token that decides this has changed.
    """
    tokens, flags, about = kept
    size, recent, reach = deciding(settings, n)
    fits = (tl.load(about) == n - 1) & (tl.load(about + 1) == settings.window)
    fits = fits & (tl.load(about + 2) == size) & (tl.load(about + 3) == settings.gate_window) & (reach <= SPAN)
    place = 1 + tl.arange(0, SPAN)
    index = (n - 1 - place) & (SPAN - 1)
    before = tl.load(tokens + index, mask=place < reach, other=0)
    found = tl.load(flags + index, mask=place < recent, other=0)
    now = tokens_at(at, place, place < reach).to(tl.int64)
    equal = (place <= settings.window) & (place + size <= n)
    here = ()
    want = ()
    for s in tl.static_range(1, SHORT):
        here = here + (tokens_at(at, place + s, equal & (s < size)),)
        want = want + (tokens_at(at, s, s < tl.minimum(size, n)),)
    changed = (before != now) & (place < reach)
    inside = equal
    equal = equal & (now == tokens_at(at, 0, n > 0).to(tl.int64))
    for s in tl.static_range(1, SHORT):
        equal = equal & ((here[s - 1] == want[s - 1]) | (s >= size))
    for s in range(SHORT, size):
        equal = equal & (tokens_at(at, place + s, inside) == tokens_at(at, s, s < n))
    # Add three numbers in one: none of them reaches SPAN.
    kind: tl.constexpr = tl.uint32 if SPAN <= 1024 else tl.uint64
    bits: tl.constexpr = 11 if SPAN <= 1024 else 20
    total = tl.sum(found.to(kind) + (equal.to(kind) << bits) + (changed.to(kind) << 2 * bits), 0)
    copied = -1
    if fits & (total >> 2 * bits == 0):
        newest = (total >> bits > 0).to(tl.int32)
        copied = (total & ((1 << bits) - 1)).to(tl.int32) + newest
        index_of_newest = (n - 1) & (SPAN - 1)
        tl.store(tokens + index_of_newest, tokens_at(at, 0, n > 0).to(tl.int64))
        tl.store(flags + index_of_newest, newest.to(tl.int8))
        tl.store(about, n)
    return copied


@triton.jit
def keep_tokens(at, settings, n, kept, SPAN: tl.constexpr):
    """Store the tokens that decide about the recent positions, and what `kept_count` compares."""
    tokens, _, about = kept
    size, _, reach = deciding(settings, n)
    place = tl.arange(0, SPAN)
    index = (n - 1 - place) & (SPAN - 1)
    tl.store(tokens + index, tokens_at(at, place, place < reach).to(tl.int64), mask=place < reach)
    tl.store(about, n)
    tl.store(about + 1, settings.window)
    tl.store(about + 2, size)
    tl.store(about + 3, settings.gate_window)


@triton.jit
def row_opening(at, settings, n, q, settings_row, kept, SPAN: tl.constexpr):
    """Return which part of every codelength of a row is charged. `q` are all distances in its window."""
    opening = tl.where(settings.gate_window > 0, 0.0, 1.0).to(tl.float32)
    if is_gated(settings, n):
        if len(kept) > 0:
            copied = kept_count(at, settings, n, kept, SPAN)
            if copied < 0:
                tl.debug_barrier()  # every thread has read what was kept
                copied = count_copied(at, settings, n, q, None, kept, SPAN)
                keep_tokens(at, settings, n, kept, SPAN)
        else:
            copied = count_copied(at, settings, n, q, None, kept, SPAN)
        opening = gate_opening(copied, settings, n, settings_row)
    return opening


@triton.jit
def row_bits(
    at, settings, e, offset, n, recent, candidate, token, literal, settings_row, row, kept_tokens, kept_flags, kept_about,
    GATE: tl.constexpr, BUFFER_BLOCK: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Return the bits of every candidate, with the row's gate if it has one. `GATE`: some row has one."""
    if GATE:
        kept = kept_of(row, kept_tokens, kept_flags, kept_about, SPAN)
        opening = row_opening(at, settings, n, e, settings_row, kept, SPAN)
        bits = tl.zeros_like(e).to(tl.float32)
        if opening > 0:
            bits = candidate_bits(at, settings, e, offset, recent, candidate, token, literal, BUFFER_BLOCK) * opening
    else:
        bits = candidate_bits(at, settings, e, offset, recent, candidate, token, literal, BUFFER_BLOCK)
    return bits
