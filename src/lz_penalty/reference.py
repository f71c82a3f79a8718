"""THE definition of the LZ penalty, on Python lists: read it next to the paper.

Every fast path is tested against this file. It uses the standard library only and is written for the reader, not
for speed. docs/mathematics.md says the same in formulas. Codelengths are in bits. The names are the paper's: buffer
`b`, window `w`, match length `l`, distances `d` and `delta`.

    context   ... x x x x x x x x x x x x x x x x x x x x x     next token: a
                  |<------ window, W tokens ------>|<- b ->|    lookback="before_buffer"
                          |<------ window, W tokens ------>|    lookback="adjacent"
    distance                       ... 5   4   3   2   1
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from lz_penalty.loops import trailing_loop

__all__ = [
    "Copy",
    "Literal",
    "Occurrence",
    "adjustments",
    "codelength",
    "compress",
    "compress_buffer",
    "compression_rate",
    "copied_positions",
    "copy_share",
    "exact_marginal_codelengths",
    "gate_opening",
    "marginal_codelengths",
    "match_lengths",
    "occurrences",
    "penalise",
    "window_span",
]


# ---------------------------------------------------------------- the closed form


def window_span(
    length: int, *, window_size: int = 512, buffer_size: int = 32, lookback: str = "before_buffer"
) -> tuple[int, int]:
    """Return where the window begins and ends in a context of `length` tokens. The buffer is always the last tokens.

    >>> window_span(10, window_size=4, buffer_size=3)
    (3, 7)
    >>> window_span(10, window_size=4, buffer_size=3, lookback="adjacent")
    (6, 10)
    """
    stop = length if lookback == "adjacent" else max(0, length - buffer_size)
    return max(0, stop - window_size), stop


def match_lengths(
    context: Sequence[int], *, window_size: int = 512, buffer_size: int = 32, lookback: str = "before_buffer"
) -> dict[int, int]:
    """Return, for each position of the window, how many tokens before it match the end of the context.

    The result maps the distance `e` of a token that could be repeated next to the number `m` of tokens directly before
    it (at most `buffer_size`, all inside the window) that equal the end of the context. Distance 0 (`before_buffer`
    only) is the oldest token of the buffer: it is not a candidate, but its match counts for `l`.

    >>> match_lengths([1, 2, 3, 4, 1, 2, 3, 4, 1, 2], window_size=8, buffer_size=2)
    {0: 0, 1: 0, 2: 2, 3: 0, 4: 0, 5: 0, 6: 2, 7: 0, 8: 0}
    """
    first, stop = window_span(len(context), window_size=window_size, buffer_size=buffer_size, lookback=lookback)
    window, buffer = context[first:stop], context[-buffer_size:]
    nearest = 1 if lookback == "adjacent" else 0
    lengths = {}
    for e in range(nearest, len(window) + 1 if window else nearest):
        before = len(window) - e  # window tokens before distance e
        m = 0
        while m < min(len(buffer), before) and window[before - 1 - m] == buffer[-1 - m]:
            m += 1
        lengths[e] = m
    return lengths


class Occurrence(NamedTuple):
    """A token of the window that could be repeated next, and its codelength.

    Attributes:
        token: its id.
        distance: `e` in docs/mathematics.md; the window's newest token has distance 1.
        match_length: how many tokens before it equal the end of the context.
        extends: whether the value is for extending a longest match (sglang formula: any match) by this token.
        value: the codelength in bits.
    """

    token: int
    distance: int
    match_length: int
    extends: bool
    value: float


def _paper_occurrences(
    context: Sequence[int], window_size: int, buffer_size: int, lookback: str, min_match_length: int
) -> list[Occurrence]:
    """Return the occurrences of the paper's formula.

    docs/mathematics.md defines it: "The paper's closed form", and "Options beyond the paper" for `lookback="adjacent"` and
    `min_match_length`.
    """
    matches = match_lengths(context, window_size=window_size, buffer_size=buffer_size, lookback=lookback)
    longest = max(matches.values(), default=0)
    newest = len(context) if lookback == "adjacent" else len(context) - buffer_size
    found = []
    for e, m in matches.items():
        if e == 0:
            continue
        token = context[newest - e]
        if min_match_length == 1:  # a copy of one token, coded by its distance
            found.append(Occurrence(token, e, m, False, math.log2(e)))
        if m == longest >= 1 and longest + 1 >= min_match_length:  # a longest match grows by one token
            ln = longest
            if lookback == "adjacent":
                found.append(Occurrence(token, e, m, True, math.log2((ln + 1) / ln) - 1))
            elif e >= 2:
                d = e + ln
                found.append(Occurrence(token, e, m, True, math.log2(1 + (d - ln - 1) / (ln * d)) - 1))
    return found


def _sglang_occurrences(context: Sequence[int], window_size: int, buffer_size: int) -> list[Occurrence]:
    """Return the occurrences of the formula in the authors' SGLang fork.

    docs/mathematics.md defines it: "`formula="sglang"`: what the authors ran".
    """
    matches = match_lengths(context, window_size=window_size, buffer_size=buffer_size, lookback="adjacent")
    candidates = min(window_size, len(context)) - buffer_size
    found = []
    for delta in range(1, candidates + 1):
        lam = 1 + matches[delta]
        value = max(0.0, (math.log2(delta + 1) + math.log2(lam)) / lam)
        found.append(Occurrence(context[-delta], delta, matches[delta], lam > 1, value))
    return found


def occurrences(
    context: Sequence[int],
    *,
    formula: str = "paper",
    lookback: str | None = None,
    window_size: int = 512,
    buffer_size: int = 32,
    min_match_length: int | None = 1,
) -> list[Occurrence]:
    """Return every occurrence in the window that has a value, nearest first. A token's smallest value counts.

    >>> occurrences([5, 7, 9, 5, 7], window_size=3, buffer_size=2, min_match_length=None)
    []
    >>> occurrences([1, 2, 3, 4, 1, 2, 3, 4, 1, 2], window_size=8, buffer_size=2, min_match_length=2)[0]
    Occurrence(token=3, distance=2, match_length=2, extends=True, value=-0.830...)
    """
    if formula == "sglang":
        return _sglang_occurrences(context, window_size, buffer_size)
    if min_match_length is None:
        return []
    return _paper_occurrences(context, window_size, buffer_size, lookback or "before_buffer", min_match_length)


# ---------------------------------------------------------------- the gate


def copy_share(
    context: Sequence[int],
    *,
    gate_window: int = 96,
    gate_from: int | None = None,
    window_size: int = 512,
    min_match_length: int = 1,
) -> float:
    """Return the share of the last `gate_window` tokens that merely repeat earlier text: the copy share.

    A position is copied if the n tokens that end there (`n = min_match_length`, at least 2) also end at one of the
    `window_size` positions before it. The two n-grams may overlap. The share is 0 while the context is shorter than
    half of `gate_window`, and shorter than `gate_from` if that is given. A shorter context counts as a whole.

    >>> copy_share([1, 2, 3, 4, 1, 2, 3, 9], gate_window=8)  # 2 and 3 end a pair of tokens that occurred before
    0.25
    >>> copy_share([7, 8] * 30), copy_share(range(60)), copy_share([7, 8] * 20)
    (0.95, 0.0, 0.0)
    >>> copy_share([7, 8] * 20, gate_from=40)
    0.925
    """
    context, t = list(context), len(context)
    if 2 * t < gate_window and (gate_from is None or t < gate_from):
        return 0.0
    recent = min(gate_window, t)
    seen = context[-recent - window_size - max(2, min_match_length) + 1 :]  # earlier tokens do not matter
    return sum(copied_positions(seen, window_size, min_match_length)[-recent:]) / recent


def copied_positions(context: Sequence[int], window_size: int, min_match_length: int) -> list[bool]:
    """Return for each position whether it is copied; `copy_share` says when it is.

    >>> copied_positions([1, 2, 3, 1, 2, 3], window_size=3, min_match_length=2)
    [False, False, False, False, True, True]
    """
    n = max(2, min_match_length)
    copied = []
    newest: dict[tuple[int, ...], int] = {}  # where each n-gram ended last; its other ends are further back
    for i in range(len(context)):
        ngram = tuple(context[max(0, i - n + 1) : i + 1])  # the first ones are shorter, and never found
        copied.append(len(ngram) == n and i - newest.get(ngram, -window_size - 1) <= window_size)
        newest[ngram] = i
    return copied


def gate_opening(share: float, gate_low: float, gate_high: float) -> float:
    """Return which part of every codelength adjustment is charged at this copy share: 0 (closed) to 1 (open).

    >>> gate_opening(0.6, 0.5, 0.7)
    0.5...
    """
    return min(1.0, max(0.0, (share - gate_low) / (gate_high - gate_low)))


# ---------------------------------------------------------------- the penalty


def adjustments(
    tokens: Sequence[int],
    vocab_size: int,
    *,
    formula: str = "paper",
    lookback: str | None = None,
    window_size: int = 512,
    buffer_size: int = 32,
    min_match_length: int | None = 1,
    escalation: float = 0.0,
    loop_window: int = 4096,
    gate_low: float | None = None,
    gate_high: float | None = None,
    gate_window: int = 96,
    gate_from: int | None = None,
    exempt_token_ids: Iterable[int] = (),
    include_prompt: bool = True,
    prompt_length: int = 0,
) -> dict[int, float]:
    """Return the sparse form: bits relative to `log2 V` for every adjusted token; all other tokens get 0.

    `logits[a] += strength * adjustments(...).get(a, 0)` is the whole penalty.

    >>> adjustments([7] * 12, 1000, window_size=8, buffer_size=3)  # -0.9069 - log2(1000)
    {7: -10.872...}
    >>> adjustments([1, 2] * 4, 1000, min_match_length=None, escalation=1.0)  # 4 copies: 2 * (log2 V + 1)
    {1: -21.931...}
    """
    context = list(tokens) if include_prompt else list(tokens[prompt_length:])
    literal = math.log2(vocab_size)
    found = occurrences(
        context,
        formula=formula,
        lookback=lookback,
        window_size=window_size,
        buffer_size=buffer_size,
        min_match_length=min_match_length,
    )
    bits: dict[int, float] = {}
    for one in found:  # the minimum over all occurrences, capped at a literal's cost
        bits[one.token] = min(bits.get(one.token, 0.0), one.value - literal)
    if gate_low is not None and gate_high is not None:
        share = copy_share(
            context,
            gate_window=gate_window,
            gate_from=gate_from,
            window_size=window_size,
            min_match_length=min_match_length or 1,
        )
        opening = gate_opening(share, gate_low, gate_high)
        bits = {token: opening * value for token, value in bits.items()} if opening else {}

    if escalation and (loop := trailing_loop(context, loop_window)):
        token = context[-loop.period]
        bits[token] = bits.get(token, 0.0) - escalation * (literal + 1) * (loop.copies - 2)

    exempt = set(exempt_token_ids)
    return {token: value for token, value in bits.items() if 0 <= token < vocab_size and token not in exempt}


def marginal_codelengths(tokens: Sequence[int], vocab_size: int, **settings) -> list[float]:
    """Return the dense form: `delta(a)` in bits for every token `a`. Takes the settings of `adjustments`.

    The worked examples of the specification:

    >>> def shown(tokens, vocab_size=1000, **settings):
    ...     dense = marginal_codelengths(tokens, vocab_size, **settings)
    ...     return {a: round(dense[a], 4) for a in sorted(set(tokens))}
    >>> shown([1, 2, 3, 4, 1, 2, 3, 4, 1, 2], window_size=8, buffer_size=2)
    {1: 2.0, 2: 1.585, 3: -0.8301, 4: 0.0}
    >>> shown([1, 2, 3, 4, 1, 2, 3, 4, 1, 2], window_size=8, buffer_size=2, lookback="adjacent")
    {1: 1.0, 2: 0.0, 3: -0.415, 4: 1.585}
    >>> shown([1, 2, 3, 9, 1, 2, 8, 6, 6, 1, 2], window_size=16, buffer_size=2)
    {1: 2.3219, 2: 2.0, 3: -0.585, 6: 0.0, 8: -0.737, 9: 2.585}
    >>> shown([1, 2, 3, 9, 1, 2, 8, 6, 6, 1, 2], window_size=16, buffer_size=2, min_match_length=2)
    {1: 9.9658, 2: 9.9658, 3: -0.585, 6: 9.9658, 8: -0.737, 9: 9.9658}
    >>> shown([7] * 12, window_size=8, buffer_size=3)
    {7: -0.9069}
    >>> shown([5, 7, 9, 5, 7], window_size=3, buffer_size=2)
    {5: 1.585, 7: 1.0, 9: 0.0}
    """
    sparse = adjustments(tokens, vocab_size, **settings)
    return [math.log2(vocab_size) + sparse.get(a, 0.0) for a in range(vocab_size)]


def penalise(
    logits: Sequence[float],
    tokens: Sequence[int],
    *,
    strength: float = 0.15,
    vocab_size: int | None = None,
    largest: float = math.inf,
    **settings,
) -> list[float]:
    """Return the penalised logits of one sequence. Takes the settings of `adjustments`.

    Args:
        logits: one per token id.
        tokens: the context, oldest first.
        strength: how many logits a bit is worth.
        vocab_size: the size of the alphabet; by default the number of logits.
        largest: the largest finite number of the logits' type; finite logits stay within it.

    >>> penalise([0.0, 1.0, 2.0], [1, 1, 1, 1], strength=0.5, window_size=2, buffer_size=2)
    [0.0, 0.207..., 2.0]
    """
    out = list(logits)
    for token, bits in adjustments(tokens, vocab_size or len(out), **settings).items():
        if math.isfinite(out[token]):
            out[token] = max(-largest, min(largest, out[token] + strength * bits))
    return out


# ---------------------------------------------------------------- the compressor (Definition 8)


class Copy(NamedTuple):
    """A phrase that repeats `length` tokens, starting `distance` tokens back."""

    length: int
    distance: int


class Literal(NamedTuple):
    """A phrase that spells out one token."""

    token: int


def codelength(code: Iterable[Copy | Literal], vocab_size: int) -> float:
    """Return the bits of a code: `log2 L + log2 D + 1` for a copy, `log2 V + 1` for a literal.

    >>> codelength([Literal(7), Copy(length=4, distance=2)], vocab_size=8)
    8.0
    """
    return sum(
        math.log2(phrase.length) + math.log2(phrase.distance) + 1
        if isinstance(phrase, Copy)
        else math.log2(vocab_size) + 1
        for phrase in code
    )


def _longest_match(y: Sequence[int], z: Sequence[int], starts: Iterable[int]) -> tuple[int, int]:
    """Return where `z` contains the longest prefix of `y`, and its length (`findLongestMatch`). Ties: first start."""
    best, longest = 0, 0
    for start in starts:
        k = 0
        while k < len(y) and start + k < len(z) and y[k] == z[start + k]:
            k += 1
        if k > longest:
            best, longest = start, k
    return best, longest


def compress_buffer(buffer: Sequence[int], window: Sequence[int]) -> list[Copy | Literal]:
    """Return the greedy code of a buffer given a window (Definition 8). Both have the oldest token first.

    The buffer is parsed newest token first, because the paper prepends the next token to it. The distance of a copy
    is measured to its newest token (the window's newest token has distance 1). On ties the nearest match counts.

    >>> compress_buffer([5, 1, 2], window=[1, 2, 3, 1, 2, 4])
    [Copy(length=2, distance=2), Literal(token=5)]
    """
    y, z = list(reversed(buffer)), list(reversed(window))
    code: list[Copy | Literal] = []
    while y:
        start, length = _longest_match(y, z, range(len(z)))
        code.append(Copy(length, start + 1) if length else Literal(y[0]))
        y = y[max(1, length) :]
    return code


def exact_marginal_codelengths(
    context: Sequence[int], vocab_size: int, *, window_size: int = 512, buffer_size: int = 32
) -> list[float]:
    """Return `|C(ab|w)| - |C(b|w)|` in bits for every token `a`, which the closed form approximates.

    The two agree up to a constant if `l = 0`, and if `l = 1` on every token that follows the nearest match at `e >= 2`.
    docs/mathematics.md shows where and by how much they differ.

    >>> exact = exact_marginal_codelengths([1, 2, 3, 4, 5, 6], 8, window_size=4, buffer_size=2)
    >>> [round(bits, 3) for bits in exact]  # log2(distance) + 1 in the window, log2(8) + 1 elsewhere
    [4.0, 3.0, 2.585, 2.0, 1.0, 4.0, 4.0, 4.0]
    """
    window = list(context[: max(0, len(context) - buffer_size)][-window_size:])
    buffer = list(context[-buffer_size:])
    base = codelength(compress_buffer(buffer, window), vocab_size)
    return [codelength(compress_buffer([*buffer, a], window), vocab_size) - base for a in range(vocab_size)]


def compress(sequence: Sequence[int], *, window_size: int = 512, buffer_size: int = 32) -> list[Copy | Literal]:
    """Return the LZSS code of a whole sequence. The window ends where the next phrase begins.

    Each phrase codes the longest prefix of the next `buffer_size` tokens that the window contains, or else one
    literal. The distance is LZ77's offset, from the phrase back to the start of its source.

    >>> compress([1, 2, 3, 1, 2, 3, 1, 2, 3])
    [Literal(token=1), Literal(token=2), Literal(token=3), Copy(length=3, distance=3), Copy(length=3, distance=3)]
    """
    code: list[Copy | Literal] = []
    i = 0
    while i < len(sequence):
        window = sequence[max(0, i - window_size) : i]
        start, length = _longest_match(sequence[i : i + buffer_size], window, range(len(window) - 1, -1, -1))
        code.append(Copy(length, len(window) - start) if length else Literal(sequence[i]))
        i += max(1, length)
    return code


def compression_rate(
    sequence: Sequence[int], vocab_size: int, *, window_size: int = 512, buffer_size: int = 32
) -> float:
    """Return the bits per token of the LZSS code (the paper's compression rate); 0 for an empty sequence.

    >>> compression_rate([1, 2, 3, 4], 256)
    9.0
    >>> compression_rate([1] * 100, 256) < 1
    True
    """
    code = compress(sequence, window_size=window_size, buffer_size=buffer_size)
    return codelength(code, vocab_size) / len(sequence) if len(sequence) else 0.0
