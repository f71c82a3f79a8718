"""The gate in the Triton kernels: which of the last tokens are copied, and which part of the codelengths is charged."""

import triton
import triton.language as tl

from lz_penalty import _packing as col
from lz_penalty.kernels.triton._parts import FAR, tokens_at, tokens_before

GATE_LOW, GATE_HIGH = tl.constexpr(col.GATE_LOW), tl.constexpr(col.GATE_HIGH)
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
def count_copied(at, settings, n, q, words, flags, SPAN: tl.constexpr):
    """Return how many of the recent positions are copied from one of these distances.

    With `words`, store a bit per position instead, so that another launch can combine the distances of all chunks. With
    `flags`, also store which positions are copied, in a ring buffer of `SPAN` places.
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
                if flags is not None:
                    place = k + tl.arange(0, WORD)
                    flag = (found >> tl.arange(0, WORD).to(tl.uint32)) & 1
                    index = (n - 1 - place) & (SPAN - 1)
                    tl.store(flags + index, flag.to(tl.int8), mask=place < tl.minimum(recent, SPAN))
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

    A division takes long, and the gate is mostly closed or wholly open. With a full gate window, integers show that.
    """
    full = n >= settings.gate_window
    closed = tl.where(full, settings.gate_counts & 0xFFFF, -1)
    not_open = tl.where(full, settings.gate_counts >> 16, FAR)
    opening = tl.where(copied > not_open, 1.0, 0.0).to(tl.float32)
    if (copied > closed) & (copied <= not_open):
        low = double_at(settings_row, GATE_LOW)
        high = double_at(settings_row, GATE_HIGH)
        share = copied.to(tl.float64) / tl.maximum(tl.minimum(n, settings.gate_window), 1).to(tl.float64)
        exact = tl.where(share >= high, 1.0, 0.0).to(tl.float64)
        if (share > low) & (share < high):
            exact = (share - low) / (high - low)
        opening = exact.to(tl.float32)
    return opening


@triton.jit
def is_gated(settings, n):
    """Return whether a row has a gate, and enough tokens that the gate can open."""
    return (settings.gate_window > 0) & (n >= settings.gate_from)
