"""Explain one step: window, buffer, matches, loop, and the cost of every candidate."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from lz_penalty import reference
from lz_penalty._checks import MAX_TOKEN_ID, integer
from lz_penalty.config import LZPenaltyConfig
from lz_penalty.errors import bad_value
from lz_penalty.loops import trailing_loop

__all__ = [
    "Candidate",
    "Decode",
    "Explanation",
    "Gate",
    "Loop",
    "Match",
    "checked",
    "explain",
    "gate_after",
    "settings_of",
]

Decode = Callable[[list[int]], str]


@dataclass(frozen=True)
class Match:
    """A longest stretch of the window that equals the end of the context.

    Args:
        length: the number of tokens; the paper's `l`.
        distance: the distance of its first token, where the window's newest token has 1; the paper's `d`.
        start: the position of its first token in `token_ids`.
        stop: the position after its last token.
        next_token: the token at `stop`, which would extend the match.
        extends: whether that token is penalised for extending it.
        text: the match, decoded.
    """

    length: int
    distance: int
    start: int
    stop: int
    next_token: int
    extends: bool
    text: str | None = None


@dataclass(frozen=True)
class Loop:
    """A loop at the end of the context.

    Args:
        period: the number of tokens that are repeated.
        copies: how often they occur, a real number of at least 3.
        start: where the first copy begins in `token_ids`.
        next_token: the token that would continue the loop.
        bits: what escalation adds to that token's codelength; negative.
        text: the last whole copy, decoded.
    """

    period: int
    copies: float
    start: int
    next_token: int
    bits: float
    text: str | None = None


@dataclass(frozen=True)
class Gate:
    """How far the gate is open.

    Args:
        copy_share: the share of recent tokens that merely repeat earlier text.
        opening: the part of every codelength adjustment that is charged: 0 (closed) to 1 (open).
    """

    copy_share: float
    opening: float


@dataclass(frozen=True)
class Candidate:
    """A token that costs less than a literal, and its cheapest occurrence.

    Args:
        token: its id.
        codelength: its cost in bits as the next token, after the gate and including the loop's bits.
        change: the number that is added to its logit; 0 if the strength is 0.
        distance: the distance of its cheapest occurrence in the window; None if only the loop makes it cheap.
        match_length: how many tokens before that occurrence equal the end of the context.
        extends: whether it is cheap because it extends a match.
        loop_bits: the bits for continuing a loop; negative.
        text: the token, decoded.
    """

    token: int
    codelength: float
    change: float
    distance: int | None
    match_length: int
    extends: bool
    loop_bits: float
    text: str | None = None


@dataclass(frozen=True)
class Explanation:
    """One step: what the penalty finds and changes after the given tokens.

    Args:
        length: how many tokens were given.
        vocab_size: the size of the alphabet.
        config: the settings.
        window: where the window begins and ends in `token_ids`.
        buffer: where the buffer begins and ends.
        longest_match: the length of the longest match; the paper's `l`.
        matches: all matches of that length, nearest first; empty if it is 0.
        loop: the loop at the end of the tokens, or None.
        gate: the copy share and the gate's opening, or None without a gate.
        literal: the bits of every token that is not a candidate; their logits do not change.
        candidates: all tokens that cost fewer bits, cheapest first; their logits change unless the strength is 0.
    """

    length: int
    vocab_size: int
    config: LZPenaltyConfig
    window: tuple[int, int]
    buffer: tuple[int, int]
    longest_match: int
    matches: tuple[Match, ...]
    loop: Loop | None
    gate: Gate | None
    literal: float
    candidates: tuple[Candidate, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as dictionaries, lists and numbers, for JSON."""
        return asdict(self)


def explain(
    token_ids: Sequence[int],
    vocab_size: int,
    *,
    config: LZPenaltyConfig,
    prompt_length: int = 0,
    decode: Decode | None = None,
) -> Explanation:
    """Explain what the penalty does after `token_ids`. The time does not depend on the vocabulary.

    Args:
        token_ids: the tokens so far, including the prompt.
        vocab_size: the size of the alphabet, which is the width of the logits.
        config: the settings.
        prompt_length: how many of the tokens belong to the prompt; used with `include_prompt=False`.
        decode: a tokenizer's `decode`, which adds texts to the explanation.

    >>> config = LZPenaltyConfig(window_size=8, buffer_size=2)
    >>> step = explain([1, 2, 3, 4, 1, 2, 3, 4, 1, 2], 1000, config=config)
    >>> [(match.start, match.stop, match.next_token) for match in step.matches]
    [(4, 6, 3), (0, 2, 3)]
    >>> cheapest = step.candidates[0]
    >>> cheapest.token, round(cheapest.codelength, 4), round(cheapest.change, 4)
    (3, -0.8301, -1.6194)
    """
    tokens = checked(token_ids, vocab_size)
    prompt_length = integer(0, len(tokens))("prompt_length", prompt_length)
    settings = settings_of(config)
    offset = 0 if config.include_prompt else prompt_length
    context = tokens[offset:]
    spans = {name: settings[name] for name in ("window_size", "buffer_size")} | {"lookback": config.effective_lookback}
    first, stop = reference.window_span(len(context), **spans)
    lengths = reference.match_lengths(context, **spans)
    longest = max(lengths.values(), default=0)
    values = {name: settings[name] for name in ("formula", "lookback", "min_match_length")}
    gate = gate_after(context, config)
    closed = gate is not None and gate.opening == 0  # then no occurrence is charged
    found = [] if closed else reference.occurrences(context, **spans | values)
    charged = reference.adjustments(context, vocab_size, **settings)
    extending = {one.distance for one in found if one.extends and one.token in charged}
    loop = _loop(tokens, context, vocab_size, config, decode)
    return Explanation(
        length=len(tokens),
        vocab_size=vocab_size,
        config=config,
        window=(offset + first, offset + stop),
        buffer=(offset + max(0, len(context) - config.buffer_size), len(tokens)),
        longest_match=longest,
        matches=_matches(tokens, lengths, offset + stop, extending, decode),
        loop=loop,
        gate=gate,
        literal=math.log2(vocab_size),
        candidates=_candidates(vocab_size, config, found, charged, loop, decode),
    )


def settings_of(config: LZPenaltyConfig) -> dict[str, Any]:
    """Return the settings for `reference.adjustments`: all except `strength` and `include_prompt`."""
    if not isinstance(config, LZPenaltyConfig):
        raise bad_value("config", config, "an LZPenaltyConfig, such as LZPenaltyConfig.guarded()")
    left_out = ("strength", "include_prompt")
    return {field.name: getattr(config, field.name) for field in fields(config) if field.name not in left_out}


def gate_after(context: Sequence[int], config: LZPenaltyConfig) -> Gate | None:
    """Return the gate's state after `context`, or `None` if `config` has no gate."""
    if config.gate_low is None or config.gate_high is None or config.min_match_length is None:
        return None
    settings = {name: getattr(config, name) for name in ("gate_window", "gate_from", "window_size", "min_match_length")}
    share = reference.copy_share(context, **settings)
    return Gate(share, reference.gate_opening(share, config.gate_low, config.gate_high))


def checked(token_ids: Sequence[int], vocab_size: int) -> list[int]:
    """Check both arguments and return the tokens as a list."""
    integer(1, MAX_TOKEN_ID)("vocab_size", vocab_size)
    tokens = list(token_ids)
    for token in tokens:
        if isinstance(token, bool) or not hasattr(token, "__index__"):
            raise bad_value("token_ids", token, "integers", "Decode the text with its tokenizer first.")
    return [int(token) for token in tokens]


def _matches(tokens, lengths, stop, extending, decode) -> tuple[Match, ...]:
    longest = max(lengths.values(), default=0)
    return tuple(
        Match(
            length=longest,
            distance=e + longest,
            start=stop - e - longest,
            stop=stop - e,
            next_token=tokens[stop - e],
            extends=e in extending,
            text=decode(tokens[stop - e - longest : stop - e]) if decode else None,
        )
        for e, length in lengths.items()
        if length == longest >= 1
    )


def _loop(tokens, context, vocab_size, config, decode) -> Loop | None:
    found = trailing_loop(context, config.loop_window)
    if found is None:
        return None
    names = ("escalation", "loop_window", "exempt_token_ids")
    escalation_only = {"min_match_length": None} | {name: getattr(config, name) for name in names}
    bits = reference.adjustments(context, vocab_size, **escalation_only)
    return Loop(
        period=found.period,
        copies=found.copies,
        start=len(tokens) - found.length,
        next_token=context[-found.period],
        bits=bits.get(context[-found.period], 0.0),
        text=decode(tokens[-found.period :]) if decode else None,
    )


def _candidates(vocab_size, config, found, charged, loop, decode) -> tuple[Candidate, ...]:
    cheapest: dict[int, reference.Occurrence] = {}
    for one in found:  # nearest first, so the nearest of equally cheap ones is kept
        if one.token not in cheapest or one.value < cheapest[one.token].value:
            cheapest[one.token] = one
    candidates = []
    for token, change in charged.items():
        if change == 0:  # an occurrence that costs as much as a literal
            continue
        one = cheapest.get(token)
        candidates.append(
            Candidate(
                token=token,
                codelength=math.log2(vocab_size) + change,
                change=config.strength * change,
                distance=one and one.distance,
                match_length=one.match_length if one else 0,
                extends=one.extends if one else False,
                loop_bits=loop.bits if loop and loop.next_token == token else 0.0,
                text=decode([token]) if decode else None,
            )
        )
    return tuple(sorted(candidates, key=lambda one: (one.codelength, one.token)))
