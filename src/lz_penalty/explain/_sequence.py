"""Explain a whole text: the cost of each of its tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lz_penalty import reference
from lz_penalty.config import LZPenaltyConfig
from lz_penalty.explain._explanation import Decode, Gate, checked, gate_after, settings_of

__all__ = ["SequenceExplanation", "Token", "explain_sequence"]


@dataclass(frozen=True)
class Token:
    """One token of a text, given the tokens before it.

    Args:
        token: its id.
        codelength: its cost in bits according to the penalty, as in `Explanation` at this position.
        match_length: the length of the longest match before it.
        gate: the copy share of the tokens before it and the gate's opening, or None without a gate.
        code_bits: its share of the text's LZSS code: the bits of its phrase / the tokens of its phrase.
        rate: bits per token of that code up to and including this token; at the last token, the compression rate.
        text: the token, decoded.
    """

    token: int
    codelength: float
    match_length: int
    gate: Gate | None
    code_bits: float
    rate: float
    text: str | None = None


@dataclass(frozen=True)
class SequenceExplanation:
    """A text's tokens with their costs. `literal` is the cost of a token that is not copied."""

    vocab_size: int
    config: LZPenaltyConfig
    literal: float
    tokens: tuple[Token, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as dictionaries, lists and numbers, for JSON."""
        return asdict(self)


def explain_sequence(
    token_ids: Sequence[int], vocab_size: int, *, config: LZPenaltyConfig, decode: Decode | None = None
) -> SequenceExplanation:
    """Explain what every token of a text costs, given the tokens before it, and how well the text compresses.

    Args:
        token_ids: the text.
        vocab_size: the size of the alphabet.
        config: the settings; the text has no prompt.
        decode: a tokenizer's `decode`, which adds the tokens' texts.

    >>> loop = explain_sequence([1, 2, 3] * 20, 1000, config=LZPenaltyConfig())
    >>> round(loop.tokens[0].code_bits, 2), round(loop.tokens[-1].rate, 2)  # log2(1000) + 1, and far less
    (10.97, 1.16)
    """
    tokens = checked(token_ids, vocab_size)
    settings = settings_of(config)
    sizes = {name: settings[name] for name in ("window_size", "buffer_size")}
    literal = math.log2(vocab_size)
    shares = _code_bits(tokens, vocab_size, sizes)
    out, total = [], 0.0
    for i, token in enumerate(tokens):
        before = tokens[:i]
        lengths = reference.match_lengths(before, **sizes, lookback=config.effective_lookback)
        total += shares[i]
        out.append(
            Token(
                token=token,
                codelength=literal + reference.adjustments(before, vocab_size, **settings).get(token, 0.0),
                match_length=max(lengths.values(), default=0),
                gate=gate_after(before, config),
                code_bits=shares[i],
                rate=total / (i + 1),
                text=decode([token]) if decode else None,
            )
        )
    return SequenceExplanation(vocab_size, config, literal, tuple(out))


def _code_bits(tokens: list[int], vocab_size: int, sizes: dict[str, int]) -> list[float]:
    shares: list[float] = []
    for phrase in reference.compress(tokens, **sizes):
        length = phrase.length if isinstance(phrase, reference.Copy) else 1
        shares += [reference.codelength([phrase], vocab_size) / length] * length
    return shares
