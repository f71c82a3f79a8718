"""What a row with a gate keeps from one step to the next, and how later steps use it.

A row keeps the tokens that decide which of its recent positions are copied, a flag for each of these positions, and

    about = number of tokens, window, length of n-grams, gate window, number of copied positions

A step uses this only if its context is the kept one and one more token: it compares all the tokens that decide. So no result
depends on what was kept, whatever an engine does to a history between two steps. Then only two positions matter: the newest
one, and the one that is no longer recent.

Tokens and flags are in ring buffers of `SPAN` places. Their index follows from the position in the context, so that
everything can be loaded at the same time, before anything is compared.
"""

from collections import namedtuple

import triton
import triton.language as tl

from lz_penalty.kernels.triton._gate import count_copied, deciding, gate_opening, is_gated
from lz_penalty.kernels.triton._parts import FIRST, candidate_bits, tokens_at, tokens_before

ABOUT = tl.constexpr(5)  # numbers in `about`
COPIED = tl.constexpr(4)  # which of them is the number of copied positions; the step compares those before it
SHORT = tl.constexpr(4)  # tokens of an n-gram that are loaded at the same time

# What a later step loads first: tokens at the places `e` and after them, the newest tokens that they are compared with,
# tokens at the places `offset + e` and after them; at the places `e` and `e + BLOCK` the tokens now and those that were kept;
# the numbers before `COPIED`; how many recent positions were copied, without the one that is no longer recent.
Loaded = namedtuple("Loaded", "here want there before far_now far_before known copied")


@triton.jit
def kept_of(row, kept_tokens, kept_flags, kept_about, SPAN: tl.constexpr):
    """Return what a row has kept; nothing if the step keeps nothing."""
    if SPAN == 0:
        return ()
    else:
        begin = row.to(tl.int64) * SPAN
        return (kept_tokens + begin, kept_flags + begin, kept_about + row * ABOUT)


@triton.jit
def is_usable(settings, n, SPAN: tl.constexpr):
    """Return whether a row can use what it has kept, as far as its settings tell."""
    _, _, reach = deciding(settings, n)
    return is_gated(settings, n) & (reach <= SPAN)


@triton.jit
def first_loads(at, settings, n, e, offset, kept, SPAN: tl.constexpr):
    """Load everything that decides about the gate, and what the matches begin with. Nothing here waits for a load."""
    if SPAN == 0:
        return ()
    else:
        tokens, flags, about = kept
        size, _, reach = deciding(settings, n)
        reach = tl.where(is_usable(settings, n, SPAN), reach, 0)
        far = e + SPAN // 2
        here = ()
        want = ()
        there = ()
        for s in tl.static_range(SHORT):
            needed = (s < size) | (s < FIRST)
            here = here + (tokens_before(at, e, 0, s, needed & (e + s < n)),)
            want = want + (tokens_at(at, s, needed & (s < n)),)
        for s in tl.static_range(FIRST):
            there = there + (tokens_before(at, offset + e, 0, s, (offset > 0) & (offset + e + s < n)),)
        before = tl.load(tokens + ((n - 1 - e) & (SPAN - 1)), mask=e < reach, other=0)
        far_now = tokens_before(at, e, 0, SPAN // 2, far < reach)
        far_before = tl.load(tokens + ((n - 1 - far) & (SPAN - 1)), mask=far < reach, other=0)
        known = tl.load(about + e - 1, mask=(e <= COPIED) & (reach > 0), other=0)
        copied = tl.load(about + COPIED, mask=reach > 0, other=0)
        passed = (n - 1 - settings.gate_window) & (SPAN - 1)
        copied -= tl.load(flags + passed, mask=(n > settings.gate_window) & (reach > 0), other=0).to(tl.int32)
        return Loaded(here, want, there, before, far_now, far_before, known, copied)


@triton.jit
def first_pairs(loaded, offset):
    """Return the tokens that `find_matches` compares first."""
    if len(loaded) == 0:
        return ()
    else:
        here = ()
        for s in tl.static_range(FIRST):
            here = here + (tl.where(offset > 0, loaded.there[s], loaded.here[s]),)
        return here, loaded.want


@triton.jit
def differs(settings, n, e, loaded):
    """Return whether what a row has kept is of no use, as far as the places `e` and `e + BLOCK` can tell."""
    size, _, reach = deciding(settings, n)
    about = tl.where(e == 1, n - 1, tl.where(e == 2, settings.window, tl.where(e == 3, size, settings.gate_window)))
    changed = ((loaded.before != loaded.here[0]) & (e < reach)) | (loaded.far_before != loaded.far_now)
    return changed | ((loaded.known != about) & (e <= COPIED))


@triton.jit
def is_copied(at, settings, n, e, loaded):
    """Return whether the newest n-gram also ends at these distances before the end."""
    size, _, _ = deciding(settings, n)
    inside = (e <= settings.window) & (e + size <= n)
    equal = inside
    for s in tl.static_range(SHORT):
        equal = equal & ((loaded.here[s] == loaded.want[s]) | (s >= size))
    for s in range(SHORT, size):
        equal = equal & (tokens_at(at, e + s, inside) == tokens_at(at, s, s < n))
    return equal


@triton.jit
def keep_newest(at, n, newest, copied, kept, SPAN: tl.constexpr):
    """Store the newest token, whether its position is copied, and how many recent positions are."""
    tokens, flags, about = kept
    index = (n - 1) & (SPAN - 1)
    tl.store(tokens + index, tokens_at(at, 0, n > 0).to(tokens.dtype.element_ty))
    tl.store(flags + index, newest.to(tl.int8))
    tl.store(about, n)
    tl.store(about + COPIED, copied)


@triton.jit
def keep_all(at, settings, n, copied, kept, SPAN: tl.constexpr):
    """Store the tokens that decide about the recent positions, and `about`. `count_copied` stores the flags."""
    tokens, _, about = kept
    size, _, reach = deciding(settings, n)
    place = tl.arange(0, SPAN)
    index = (n - 1 - place) & (SPAN - 1)
    tl.store(tokens + index, tokens_at(at, place, place < reach).to(tokens.dtype.element_ty), mask=place < reach)
    tl.store(about, n)
    tl.store(about + 1, settings.window)
    tl.store(about + 2, size)
    tl.store(about + 3, settings.gate_window)
    tl.store(about + COPIED, copied)


@triton.jit
def later_count(at, settings, n, e, kept, loaded, SPAN: tl.constexpr):
    """Return how many of the recent positions are copied, and keep what the next step needs."""
    found = tl.where(differs(settings, n, e, loaded), 2, is_copied(at, settings, n, e, loaded).to(tl.int32))
    found = tl.max(found, 0)
    copied = loaded.copied + found
    if is_usable(settings, n, SPAN) & (found < 2):
        keep_newest(at, n, found, copied, kept, SPAN)
    else:
        tl.debug_barrier()  # every thread has read what was kept
        copied = count_copied(at, settings, n, e, None, kept[1], SPAN)
        keep_all(at, settings, n, copied, kept, SPAN)
    return copied


@triton.jit
def row_bits(
    at, settings, e, offset, n, recent, candidate, token, literal, settings_row, kept, loaded,
    GATE: tl.constexpr, BUFFER_BLOCK: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Return the bits of every candidate, with the row's gate if it has one. `GATE`: some row has one."""
    first = first_pairs(loaded, offset)
    if GATE:
        opening = tl.where(settings.gate_window > 0, 0.0, 1.0).to(tl.float32)
        if is_gated(settings, n):
            if SPAN > 0:
                copied = later_count(at, settings, n, e, kept, loaded, SPAN)
            else:
                copied = count_copied(at, settings, n, e, None, None, 0)
            opening = gate_opening(copied, settings, n, settings_row)
        bits = tl.zeros_like(e).to(tl.float32)
        if opening > 0:
            bits = candidate_bits(at, settings, e, offset, recent, candidate, token, literal, first, BUFFER_BLOCK)
            bits *= opening
    else:
        bits = candidate_bits(at, settings, e, offset, recent, candidate, token, literal, first, BUFFER_BLOCK)
    return bits
