"""The gate in the Triton kernels: which of the last tokens are copied, and which part of the codelengths is charged.

A row may keep, from one step to the next, its last `SPAN` tokens and which of them are copied, and

    about = number of tokens, window, length of n-grams, gate window

A step uses this only if its context is the kept one and one more token: it compares the tokens. So no result depends on
what was kept, whatever an engine does to a history between two steps. In these ring buffers, a token's index follows from
its position in the context, so that everything can be loaded at the same time.
"""

import os

import triton
import triton.language as tl

from lz_penalty import _packing as col
from lz_penalty.kernels.triton._parts import (
    FAR,
    FIRST,
    UNROLL,
    candidate_bits,
    codelength_bits,
    find_matches,
    grow,
    is_extension,
    order_of,
    rank,
    rest_of_matches,
    tokens_at,
    tokens_before,
    with_match_before,
)

VARIANT = tl.constexpr(int(os.environ.get("LZ_GATE_VARIANT", "0")))  # which way later steps go, while they are compared
KEPT_ABOUT = tl.constexpr(8 if VARIANT.value else 4)  # numbers that say what a row has kept
COPIED = tl.constexpr(6)  # which of them is how many of the recent positions are copied
GATE_LOW, GATE_HIGH, GATE_COUNTS = map(tl.constexpr, (col.GATE_LOW, col.GATE_HIGH, col.GATE_COUNTS))
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
        width: tl.constexpr = KEPT_ABOUT + (SPAN // 2 if VARIANT == 4 else 0)
        return (kept_tokens + begin, kept_flags + begin, kept_about + row * width)


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
    tl.store(tokens + index, tokens_at(at, place, place < reach).to(tokens.dtype.element_ty), mask=place < reach)
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


# ---------------------------------------------------------------- later steps, all of whose loads begin together


@triton.jit
def opening_of(copied, counts, settings, n, settings_row):
    """Return which part of every codelength is charged, if this many of the recent positions are copied.

    `counts` are those of a full gate window, so that most steps compare integers.
    """
    full = n >= settings.gate_window
    closed = tl.where(full, counts & 0xFFFF, -1)
    not_open = tl.where(full, counts >> 16, FAR)
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
def max_and_min(a, b, c, d):
    """Return the larger of the first numbers of two pairs, and the smaller of the second ones."""
    return tl.maximum(a, c), tl.minimum(b, d)


@triton.jit
def deciding_reach(settings, n, offset):
    """Return how many tokens decide what a row keeps."""
    size, recent, reach = deciding(settings, n)
    if VARIANT == 4:  # the runs too
        reach = tl.maximum(reach, tl.minimum(n, offset + settings.window + settings.buffer + 2))
    return reach


@triton.jit
def first_loads(
    at, settings, n, e, offset, settings_row, row, kept_tokens, kept_flags, kept_about,
    GATE: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Return everything that decides about the gate, and what the matches begin with. Nothing here waits for a load."""
    if not GATE or SPAN == 0 or VARIANT == 0:
        return ()
    else:
        tokens, flags, about = kept_of(row, kept_tokens, kept_flags, kept_about, SPAN)
        size, recent, _ = deciding(settings, n)
        reach = deciding_reach(settings, n, offset)
        usable = is_gated(settings, n) & (reach <= SPAN)
        now = tokens_before(at, e, 0, 0, e < n)
        before = tl.load(tokens + ((n - 1 - e) & (SPAN - 1)), mask=(e < reach) & usable, other=0)
        far = e + SPAN // 2
        far_now = tokens_before(at, e, 0, SPAN // 2, (far < reach) & usable)
        far_before = tl.load(tokens + ((n - 1 - far) & (SPAN - 1)), mask=(far < reach) & usable, other=0)
        known = tl.load(about + e - 1, mask=(e <= COPIED) & usable, other=0)
        copied = tl.load(about + COPIED, mask=usable, other=0)
        passed = (n - 1 - settings.gate_window) & (SPAN - 1)  # the position that is no longer recent
        copied -= tl.load(flags + passed, mask=(n > settings.gate_window) & usable, other=0).to(tl.int32)
        here = (now,)
        want = (tokens_at(at, 0, n > 0),)
        there = ()
        if VARIANT == 4:
            near = (e <= tl.minimum(offset, settings.window)) & usable
            for s in tl.static_range(1, SHORT):
                here = here + (tokens_before(at, e, 0, s, near & (s < size) & (e + s < n)),)
                want = want + (tokens_at(at, s, (s < size) & (s < n)),)
            there = (tokens_before(at, offset + e, 0, 0, (offset > 0) & (offset + e < n)),)
            run = tl.load(about + KEPT_ABOUT + e - 1, mask=(e <= settings.window) & usable, other=0)
        else:
            for s in tl.static_range(1, SHORT):
                here = here + (tokens_before(at, e, 0, s, ((s < size) | (s < FIRST)) & (e + s < n)),)
                want = want + (tokens_at(at, s, ((s < size) | (s < FIRST)) & (s < n)),)
            for s in tl.static_range(FIRST):
                there = there + (tokens_before(at, offset + e, 0, s, (offset > 0) & (offset + e + s < n)),)
            run = 0
        counts = tl.load(settings_row + GATE_COUNTS)
        return (here, want, there, run, before, known, far_now, far_before, copied, counts)


@triton.jit
def differs(settings, n, e, size, before, now, known, far_now, far_before, reach, usable):
    """Return whether what a row has kept is of no use, as far as the places `e` and `e + BLOCK` can tell."""
    about = tl.where(e == 1, n - 1, tl.where(e == 2, settings.window, tl.where(e == 3, size, settings.gate_window)))
    if VARIANT == 4:
        about = tl.where(e == 5, settings.mode, tl.where(e == 6, settings.buffer, about))
    changed = ((before != now) & (e < reach)) | (far_before != far_now)
    return (changed | ((known != about) & (e <= (COPIED if VARIANT == 4 else 4)))) & usable


@triton.jit
def same_ngram(at, n, e, size, want, here, inside):
    """Return whether the newest n-gram also ends at these distances before the end."""
    equal = inside & (here[0] == want[0])
    for s in tl.static_range(1, SHORT):
        equal = equal & ((here[s] == want[s]) | (s >= size))
    for s in range(SHORT, size):
        equal = equal & (tokens_at(at, e + s, inside) == tokens_at(at, s, s < n))
    return equal


@triton.jit
def keep_newest(at, n, kept, newest, copied, SPAN: tl.constexpr):
    """Store the newest token, whether its position is copied, and how many of the recent ones are."""
    tokens, flags, about = kept
    index = (n - 1) & (SPAN - 1)
    tl.store(tokens + index, tokens_at(at, 0, n > 0).to(tokens.dtype.element_ty))
    tl.store(flags + index, newest.to(tl.int8))
    tl.store(about, n)
    tl.store(about + COPIED, copied)


@triton.jit
def later_bits(
    at, settings, e, offset, n, recent, candidate, token, literal, settings_row, kept, loaded,
    BUFFER_BLOCK: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Return the bits of every candidate in a later step. The first tokens of the matches are compared with the gate's."""
    here, want, there, _, before, known, far_now, far_before, copied, counts = loaded
    size, _, reach = deciding(settings, n)
    gated = is_gated(settings, n)
    usable = gated & (reach <= SPAN)
    equal = same_ngram(at, n, e, size, want, here, (e <= settings.window) & (e + size <= n) & usable)
    changed = differs(settings, n, e, size, before, here[0], known, far_now, far_before, reach, usable)
    found = tl.where(changed, 2, equal.to(tl.int32))

    limit = tl.minimum(recent - (offset + e), settings.buffer)
    shared = tl.minimum(recent, settings.buffer)
    alive = limit > 0
    match = tl.zeros_like(e)
    for s in tl.static_range(FIRST):
        alive = alive & (s < limit) & (tl.where(offset > 0, there[s], here[s]) == want[s])
        match += alive.to(tl.int32)
    valid = is_extension(settings, e, candidate)
    order = order_of(alive, valid, e)
    nearest = 0
    if VARIANT == 1:
        found = tl.max(found, 0)
    else:
        found, nearest = tl.reduce((found, order), 0, max_and_min)

    opening = tl.where(settings.gate_window > 0, 0.0, 1.0).to(tl.float32)
    if gated:
        if usable & (found < 2):
            copied += found
            keep_newest(at, n, kept, found, copied, SPAN)
        else:
            tl.debug_barrier()  # every thread has read what was kept
            copied = count_copied(at, settings, n, e, None, kept, SPAN)
            keep_tokens(at, settings, n, kept, SPAN)
            tl.store(kept[2] + COPIED, copied)
        opening = opening_of(copied, counts, settings, n, settings_row)
    bits = tl.zeros_like(e).to(tl.float32)
    if opening > 0:
        if VARIANT == 1:
            nearest = tl.min(order, 0)
        match, best = rest_of_matches(
            at, settings, e, offset, recent, token, valid, limit, shared, alive, match, nearest, BUFFER_BLOCK
        )
        best = with_match_before(best, at, settings, offset, recent, BUFFER_BLOCK)
        bits = codelength_bits(at, settings, e, offset, candidate, token, match, best, literal) * opening
    return bits


@triton.jit
def count_runs(at, settings, n, e, offset):
    """Return how many of the newest tokens equal those `offset + e` before them; at most one more than the buffer."""
    source = offset + e
    most = settings.buffer + 1
    limit = tl.where(e <= settings.window, tl.minimum(n - source, most), 0)
    alive = limit > 0
    run = tl.zeros_like(e)
    k = 0
    going = True
    while going:
        alive, run = grow(at, source, limit, tl.minimum(n, most), alive, run, k, UNROLL)
        k += UNROLL
        going = (k < most) & (tl.max(alive.to(tl.int32), 0) > 0)
    return run


@triton.jit
def keep_all(at, settings, n, e, offset, kept, reach, run, SPAN: tl.constexpr):
    """Store the tokens that decide, the runs, and what `differs` compares."""
    tokens, _, about = kept
    for part in tl.static_range(2):
        place = e - 1 + part * (SPAN // 2)
        here = tokens_at(at, place, place < reach).to(tokens.dtype.element_ty)
        tl.store(tokens + ((n - 1 - place) & (SPAN - 1)), here, mask=place < tl.minimum(reach, SPAN))
    tl.store(about + KEPT_ABOUT + e - 1, run)
    tl.store(about, n)
    tl.store(about + 1, settings.window)
    tl.store(about + 2, tl.maximum(settings.min_match, 2))
    tl.store(about + 3, settings.gate_window)
    tl.store(about + 4, settings.mode)
    tl.store(about + 5, settings.buffer)


@triton.jit
def later_bits_from_runs(
    at, settings, e, offset, n, recent, candidate, token, literal, settings_row, kept, loaded,
    BUFFER_BLOCK: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Return the bits of every candidate in a later step, from the run of each distance, which a row keeps too.

    A new token makes a run one longer or ends it. The matches follow from the runs, and so does whether the newest position
    is copied.
    """
    here, want, there, run, before, known, far_now, far_before, copied, counts = loaded
    size, _, _ = deciding(settings, n)
    reach = deciding_reach(settings, n, offset)
    valid = is_extension(settings, e, candidate)
    opening = tl.where(settings.gate_window > 0, 0.0, 1.0).to(tl.float32)
    match = tl.zeros_like(e)
    best = 0
    if is_gated(settings, n):
        usable = reach <= SPAN
        source = offset + e
        limit = tl.minimum(recent - source, settings.buffer)
        equal = (tl.where(offset > 0, there[0], here[0]) == want[0]) & (source < n) & (e <= settings.window)
        run = tl.where(equal, tl.minimum(run + 1, settings.buffer + 1), 0)
        copied_here = (run >= size) & (source <= settings.window)
        if offset > 0:
            near = (e <= tl.minimum(offset, settings.window)) & (e + size <= n)
            copied_here = copied_here | same_ngram(at, n, e, size, want, here, near)
        changed = differs(settings, n, e, size, before, here[0], known, far_now, far_before, reach, usable)
        found = tl.max(tl.where(changed, 2, copied_here.to(tl.int32)), 0)
        if usable & (found < 2):
            copied += found
            keep_newest(at, n, kept, found, copied, SPAN)
            tl.store(kept[2] + KEPT_ABOUT + e - 1, run)
        else:
            tl.debug_barrier()  # every thread has read what was kept
            copied = count_copied(at, settings, n, e, None, kept, SPAN)
            run = count_runs(at, settings, n, e, offset)
            keep_all(at, settings, n, e, offset, kept, reach, run, SPAN)
            tl.store(kept[2] + COPIED, copied)
        match = tl.maximum(tl.minimum(run, limit), 0)
        opening = opening_of(copied, counts, settings, n, settings_row)
        if opening > 0:
            best = tl.max(rank(match, e, valid), 0)
    elif settings.gate_window == 0:
        match, best = find_matches(at, settings, e, offset, recent, candidate, token, BUFFER_BLOCK)
    bits = tl.zeros_like(e).to(tl.float32)
    if opening > 0:
        best = with_match_before(best, at, settings, offset, recent, BUFFER_BLOCK)
        bits = codelength_bits(at, settings, e, offset, candidate, token, match, best, literal) * opening
    return bits


@triton.jit
def row_bits(
    at, settings, e, offset, n, recent, candidate, token, literal, settings_row, row, kept_tokens, kept_flags, kept_about,
    loaded, GATE: tl.constexpr, BUFFER_BLOCK: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Return the bits of every candidate, with the row's gate if it has one. `GATE`: some row has one."""
    if GATE and len(loaded) > 0:
        kept = kept_of(row, kept_tokens, kept_flags, kept_about, SPAN)
        if VARIANT == 4:
            bits = later_bits_from_runs(
                at, settings, e, offset, n, recent, candidate, token, literal, settings_row, kept, loaded,
                BUFFER_BLOCK, SPAN,
            )  # fmt: skip
        else:
            bits = later_bits(
                at, settings, e, offset, n, recent, candidate, token, literal, settings_row, kept, loaded,
                BUFFER_BLOCK, SPAN,
            )  # fmt: skip
    elif GATE:
        kept = kept_of(row, kept_tokens, kept_flags, kept_about, SPAN)
        opening = row_opening(at, settings, n, e, settings_row, kept, SPAN)
        bits = tl.zeros_like(e).to(tl.float32)
        if opening > 0:
            bits = candidate_bits(at, settings, e, offset, recent, candidate, token, literal, BUFFER_BLOCK) * opening
    else:
        bits = candidate_bits(at, settings, e, offset, recent, candidate, token, literal, BUFFER_BLOCK)
    return bits
