"""The parts of the Triton kernels: where tokens are, what they cost, and how a logit is lowered.

Tokens are addressed newest first: place 0 is the newest token of the context, drafts included. Names in these kernels:

    at        where the tokens of a row are; see `open_row`
    n         how many tokens the row has
    recent    how many of them the codelength considers: the window, and the buffer where it is apart
    offset    the place where the candidates begin: after the buffer, or 0
    e         the distance of a candidate, from 1 on; its place is `offset + e - 1`
    match     how many tokens before a candidate equal the newest tokens
    keep      whether a candidate's logit may be written
    literal   the bits of a literal
    further   the bits that escalation adds to the token that would continue the loop
"""

from collections import namedtuple

import triton
import triton.language as tl

from lz_penalty import _packing as col

# Triton reads globals of this type only; their values are part of the key under which it keeps compiled kernels.
NONE, BEFORE_BUFFER, ADJACENT, SGLANG = map(tl.constexpr, (col.NONE, col.BEFORE_BUFFER, col.ADJACENT, col.SGLANG))
MODE, WINDOW, BUFFER, MIN_MATCH = map(tl.constexpr, (col.MODE, col.WINDOW, col.BUFFER, col.MIN_MATCH))
LOOP_WINDOW, STRENGTH, ESCALATION = map(tl.constexpr, (col.LOOP_WINDOW, col.STRENGTH, col.ESCALATION))
GATE_WINDOW, GATE_FROM, GATE_COUNTS = map(tl.constexpr, (col.GATE_WINDOW, col.GATE_FROM, col.GATE_COUNTS))
EXEMPT_BEGIN, EXEMPT_END = tl.constexpr(col.EXEMPT_BEGIN), tl.constexpr(col.EXEMPT_END)
NEARNESS = tl.constexpr(2**17)  # above any distance; times the longest buffer it still fits 32 bits
FAR = tl.constexpr(2**30)  # above any distance or period
FIRST = tl.constexpr(2)  # tokens that every match is compared by at first
UNROLL = tl.constexpr(8)  # tokens that the matches which are left are compared by in each further round

# The settings of a row as in `lz_penalty._packing.SettingsRow`, without its exempt ids and thresholds.
Settings = namedtuple(
    "Settings", "mode window buffer min_match loop_window gate_window gate_from gate_counts strength escalation"
)


# ---------------------------------------------------------------- where the tokens are


@triton.jit
def read_settings(table, row, stride):
    """Load the settings of a row."""
    settings_row = table + row * stride
    return Settings(
        tl.load(settings_row + MODE),
        tl.load(settings_row + WINDOW),
        tl.load(settings_row + BUFFER),
        tl.load(settings_row + MIN_MATCH),
        tl.load(settings_row + LOOP_WINDOW),
        tl.load(settings_row + GATE_WINDOW),
        tl.load(settings_row + GATE_FROM),
        tl.load(settings_row + GATE_COUNTS),
        tl.load(settings_row + STRENGTH).to(tl.float32, bitcast=True),
        tl.load(settings_row + ESCALATION).to(tl.float32, bitcast=True),
    )


@triton.jit
def clamped(pointer, row, default, high):
    """Load a row's number and clamp it: to check it, the host would have to wait for the device."""
    value = default
    if pointer is not None:
        value = tl.minimum(tl.maximum(tl.load(pointer + row), 0), high).to(tl.int32)
    return value


@triton.jit
def open_row(
    row, token_ids, slot_stride, stride, slots, capacity, lengths, starts, row_to_slot,
    tail_ids, tail_row_stride, tail_stride, tail_capacity, tail_lengths, newest_ids, sampled_ids,
):  # fmt: skip
    """Store the row's newest token if there is one; return where its tokens are (for `tokens_at`) and how many."""
    slot = clamped(row_to_slot, row, row, slots - 1)
    end = clamped(lengths, row, capacity, capacity)
    begin = clamped(starts, row, 0, end)
    drafts = clamped(tail_lengths, row, tail_capacity, tail_capacity)
    newest = token_ids + slot.to(tl.int64) * slot_stride + tl.cast(end + drafts - 1, tl.int64) * stride
    if newest_ids is not None:
        given = tl.load(newest_ids + row)
        if sampled_ids is not None:
            place = -2 - given
            given = tl.where(place < 0, given, tl.load(sampled_ids + place, mask=place >= 0, other=-1))
        last = newest - tl.cast(drafts, tl.int64) * stride
        tl.store(last, given.to(token_ids.dtype.element_ty), mask=(given >= 0) & (end > 0))
        tl.debug_barrier()  # before any thread reads it
    n = end - begin + drafts
    if tail_ids is None:
        return (newest, stride), n
    else:
        newest_draft = tail_ids + row.to(tl.int64) * tail_row_stride + tl.cast(drafts - 1, tl.int64) * tail_stride
        return (newest, stride, newest_draft, tail_stride, drafts), n


@triton.jit
def tokens_at(at, place, mask):
    """Load the tokens at these places, counted back from the newest; 0 where `mask` is off."""
    if len(at) == 2:
        newest, stride = at
        return tl.load(newest - tl.cast(place, tl.int64) * stride, mask=mask, other=0)
    else:
        newest, stride, newest_draft, tail_stride, drafts = at
        old = tl.load(newest - tl.cast(place, tl.int64) * stride, mask=mask & (place >= drafts), other=0)
        draft = tl.load(newest_draft - tl.cast(place, tl.int64) * tail_stride, mask=mask & (place < drafts), other=0)
        return tl.where(place < drafts, draft.to(tl.int64), old.to(tl.int64))


@triton.jit
def tokens_before(at, place, k, u: tl.constexpr, mask):
    """Load the tokens `k + u` before these places. The address is computed once for every `u`."""
    if len(at) == 2:
        newest, stride = at
        return tl.load(newest - (tl.cast(place, tl.int64) + k) * stride - u * stride, mask=mask, other=0)
    else:
        return tokens_at(at, place + k + u, mask)


# ---------------------------------------------------------------- what they cost


@triton.jit
def asks_for_nothing(settings):
    """Return whether a row with these settings is left untouched."""
    return (settings.mode == NONE) & (settings.loop_window == 0)


@triton.jit
def extent(n, settings):
    """Return the place where the candidates of a row with `n` tokens begin, and how many tokens its codelength considers."""
    offset = tl.where(settings.mode == BEFORE_BUFFER, settings.buffer, 0)
    return offset, tl.where(settings.mode == NONE, 0, tl.minimum(n, offset + settings.window))


@triton.jit
def is_candidate(place, recent, settings):
    """Return whether the tokens at these places are candidates, if the codelength considers `recent` tokens."""
    return place < recent - tl.where(settings.mode == SGLANG, settings.buffer, 0)


@triton.jit
def find_matches(at, settings, e, offset, recent, candidate, token, first, BUFFER_BLOCK: tl.constexpr):
    """Return each place's match, and the highest rank among them.

    In ordinary text, almost every match ends within the first few tokens. In a loop, the nearest place that is left has
    a full match. The others with the same token are then not measured but count as full: that changes nothing, because
    the nearer place has the smaller value for their token.

    `first` has the tokens of `load_pairs` for the first `FIRST` tokens of each match, if they are loaded already.
    """
    buffer = settings.buffer
    source = offset + e  # where the tokens before each place begin
    limit = tl.minimum(recent - source, buffer)
    shared = tl.minimum(recent, buffer)
    if len(first) == 0:
        first = load_pairs(at, source, limit, shared, 0, FIRST)
    alive, match = compare_pairs(first, limit, limit > 0, tl.zeros_like(e), 0, FIRST)
    valid = candidate & ((settings.mode != BEFORE_BUFFER) | (e >= 2))
    nearest = tl.min(tl.where(alive & valid, e, tl.where(alive, FAR - 1, FAR)), 0)
    k = FIRST
    going = (nearest < FAR) & (k < buffer)
    if going & (nearest < FAR - 1):
        if match_at(at, offset + nearest, buffer, recent, BUFFER_BLOCK) == buffer:
            same = alive & valid & (token == tokens_at(at, offset + nearest - 1, nearest < FAR))
            match = tl.where(same, buffer, match)
            alive = alive & valid & (same == 0)
            going = tl.max(alive.to(tl.int32), 0) > 0
    while going:
        pairs = load_pairs(at, source, limit, shared, k, UNROLL)
        alive, match = compare_pairs(pairs, limit, alive, match, k, UNROLL)
        k += UNROLL
        going = (k < buffer) & (tl.max(alive.to(tl.int32), 0) > 0)
    return match, tl.max(rank(match, e, valid), 0)


@triton.jit
def load_pairs(at, source, limit, shared, k, STEPS: tl.constexpr):
    """Load `STEPS` tokens of each match, from the `k`-th on, and the newest tokens that they are compared with.

    All loads come first, so that the device does them at the same time.
    """
    here = ()
    want = ()
    for u in tl.static_range(STEPS):
        here = here + (tokens_before(at, source, k, u, k + u < limit),)
        want = want + (tokens_at(at, k + u, k + u < shared),)
    return here, want


@triton.jit
def compare_pairs(pairs, limit, alive, match, k, STEPS: tl.constexpr):
    """Return which matches still grow, and how long they are, after `STEPS` more tokens from the `k`-th on."""
    here, want = pairs
    for u in tl.static_range(STEPS):
        alive = alive & (k + u < limit) & (here[u] == want[u])
        match += alive.to(tl.int32)
    return alive, match


@triton.jit
def match_at(at, source, buffer, recent, BUFFER_BLOCK: tl.constexpr):
    """Return the match of one place."""
    k = tl.arange(0, BUFFER_BLOCK)
    inside = (k < buffer) & (source + k < recent)
    equal = inside & (tokens_at(at, k, inside) == tokens_at(at, source + k, inside))
    return tl.min(tl.where(equal, BUFFER_BLOCK, k), 0)


@triton.jit
def with_match_before(best, at, settings, offset, recent, BUFFER_BLOCK: tl.constexpr):
    """Return the best rank with the match just before the buffer, which has no candidate but counts for the longest."""
    if (settings.mode == BEFORE_BUFFER) & (best < settings.buffer * NEARNESS):
        best = tl.maximum(best, match_at(at, offset, settings.buffer, recent, BUFFER_BLOCK) * NEARNESS)
    return best


@triton.jit
def rank(match, e, valid):
    """Return a number that orders places by the length of their match, then by nearness; invalid extensions come last."""
    return match * NEARNESS + tl.where(valid, NEARNESS - 1 - e, 0)


@triton.jit
def codelength_bits(at, settings, e, offset, candidate, token, match, best, literal):
    """Return the bits relative to a literal for the token at distance `e`; 0 if it has none, or a nearer place has them.

    `best` is the highest rank of all places. It contains the longest match and the nearest place that extends it.

    In a loop, most places repeat the value of a nearer one, and each would cost an atomic minimum on one address. Two
    kinds of places are left out: extensions with the token of the nearest extension, and places whose token occurs one
    lag of the longest match nearer. (SGLang's value falls with the length of the match, so there only places without a
    match are left out.)
    """
    mode, min_match = settings.mode, settings.min_match
    longest = best // NEARNESS
    nearness = best % NEARNESS
    nearest = NEARNESS - 1 - nearness
    distance = e.to(tl.float32)
    longer = match == longest
    if mode == SGLANG:
        length = (match + 1).to(tl.float32)
        value = tl.maximum((tl.log2(distance + 1) + tl.log2(length)) / length, 0.0)
    else:
        value = tl.where(min_match == 1, tl.log2(distance), literal)
        if (longest >= 1) & (longest + 1 >= min_match):
            length = longest.to(tl.float32)
            if mode == ADJACENT:
                value = tl.where(longer, tl.log2((length + 1) / length) - 1, value)
            else:
                extension = tl.log2(1 + (distance - 1) / (length * (distance + length))) - 1
                value = tl.where(longer & (e >= 2), extension, value)
    if (longest >= 1) & (nearness > 0):
        nearer = e - offset - nearest
        inside = candidate & (nearer >= 1)
        again = (
            inside
            & (tokens_at(at, offset + nearer - 1, inside) == token)
            & tl.where(mode == SGLANG, match == 0, longer == 0)
        )
        first = tokens_at(at, offset + nearest - 1, nearness > 0)
        again = again | (longer & (e > nearest) & (token == first))
        value = tl.where(again, literal, value)
    return tl.minimum(value - literal, 0.0)


@triton.jit
def candidate_bits(at, settings, e, offset, recent, candidate, token, literal, first, BUFFER_BLOCK: tl.constexpr):
    """Return the bits of every candidate, without a gate. `first`: see `find_matches`."""
    match, best = find_matches(at, settings, e, offset, recent, candidate, token, first, BUFFER_BLOCK)
    best = with_match_before(best, at, settings, offset, recent, BUFFER_BLOCK)
    return codelength_bits(at, settings, e, offset, candidate, token, match, best, literal)


# ---------------------------------------------------------------- lowering logits


@triton.jit
def may_write(token, keep, vocab_size, settings_row, exempt_ids, EXEMPT_STEPS: tl.constexpr):
    """Return which tokens may be adjusted: those inside the vocabulary that are not among the row's exempt ids."""
    keep = keep & (token >= 0) & (token < vocab_size)
    if EXEMPT_STEPS > 0:
        end = tl.load(settings_row + EXEMPT_END)
        low = tl.zeros_like(token).to(tl.int32) + tl.load(settings_row + EXEMPT_BEGIN)
        high = tl.zeros_like(token).to(tl.int32) + end
        for _ in tl.static_range(EXEMPT_STEPS):
            open_ = low < high
            middle = (low + high) // 2
            below = tl.load(exempt_ids + middle, mask=open_, other=0) < token
            low = tl.where(open_ & below, middle + 1, low)
            high = tl.where(open_ & (below == 0), middle, high)
        keep = keep & (tl.load(exempt_ids + low, mask=low < end, other=-1) != token)
    return keep


@triton.jit
def await_kernel_before():
    """Wait for the kernel before this one on the stream, where this one has started early; see `may_start_early`."""
    tl.inline_asm_elementwise("griddepcontrol.wait; // $0", "=r", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def lower_logits(cell, original, change, keep, LOWEST: tl.constexpr):
    """Set `cell = min(cell, original + change)` atomically. A finite logit stays finite, others stay as they are."""
    kind: tl.constexpr = cell.dtype.element_ty
    wide: tl.constexpr = tl.float64 if kind == tl.float64 else tl.float32
    value = original.to(wide)
    new = tl.maximum(value + change, LOWEST) + 0.0  # + 0.0 removes a negative zero: its bits would not compare
    keep = keep & (tl.abs(value) < float("inf")) & (new < value)
    if kind.primitive_bitwidth >= 32:
        tl.atomic_min(cell, new.to(kind), mask=keep, sem="relaxed")
    else:
        narrow = new.to(kind)
        bits = cell.to(tl.pointer_type(tl.int16), bitcast=True)
        seen = original.to(tl.int16, bitcast=True)
        while tl.max(keep.to(tl.int32), 0) > 0:
            found = tl.atomic_cas(bits, seen, tl.where(keep, narrow.to(tl.int16, bitcast=True), seen), sem="relaxed")
            keep = keep & (found != seen) & (found.to(kind, bitcast=True).to(wide) > narrow.to(wide))
            seen = found
