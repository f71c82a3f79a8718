"""Turn a predictor of tokens into a lossless compressor: range coding by `constriction`, cut to the shortest code.

Needs the `constriction` package: `pip install 'lz-penalty[duality]'`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import constriction
import numpy as np
import numpy.typing as npt

from lz_penalty.errors import LZPenaltyError

__all__ = ["Code", "Predictor", "decode", "encode"]

PRECISION = 24  # bits of a probability in the range coder
WORD = 32  # bits that it writes at once
STATE = 64  # bits of its state


class Predictor(Protocol):
    """Predicts the next token. Equal tokens must always give bit-identical probabilities."""

    def probabilities(self) -> npt.NDArray[np.float32]:
        """Return the probability of each next token, `[vocab]`; their sum need not be exactly 1."""

    def push(self, token: int) -> None:
        """Append a token to the tokens so far."""


class Code(NamedTuple):
    """A compressed sequence."""

    data: bytes  # the code, padded with zeros to whole bytes
    bits: int  # its length without the padding
    cross_entropy: float  # bits of the sequence under the predictor's own probabilities
    quantised: float  # bits of the sequence under the coder's probabilities, which are multiples of 2^-24 and never 0


def encode(tokens: Sequence[int], predictor: Predictor) -> Code:
    """Return the code of a sequence. Codes are prefix-free if every sequence ends with a token that occurs only there."""
    encoder = constriction.stream.queue.RangeEncoder()
    entropy = quantised = 0.0
    for token in tokens:
        given = predictor.probabilities()
        if not given[token] > 0:
            raise LZPenaltyError(f"token {token} has no probability: this predictor cannot code it.")
        weights = _weights(given)
        encoder.encode(token, constriction.stream.model.Categorical(weights, perfect=False))
        entropy -= math.log2(float(given[token]) / float(given.sum(dtype=np.float64)))
        quantised += PRECISION - math.log2(weights[token] + 1)
        predictor.push(token)
    bits, number = _shortest(encoder)
    padding = -bits % 8
    return Code((number << padding).to_bytes((bits + padding) // 8, "big"), bits, entropy, quantised)


def decode(data: bytes, predictor: Predictor, ends: Callable[[int], bool], limit: int) -> list[int]:
    """Return the sequence of a code, up to and including the first token that ends it."""
    padded = data + bytes(-len(data) % (WORD // 8) + STATE // 8)
    decoder = constriction.stream.queue.RangeDecoder(np.frombuffer(padded, dtype=">u4").astype(np.uint32))
    tokens: list[int] = []
    while not tokens or not ends(tokens[-1]):
        if len(tokens) == limit:
            raise LZPenaltyError(
                f"no end within {limit:,} tokens: this is not the code of a text, or of another model."
            )
        model = constriction.stream.model.Categorical(_weights(predictor.probabilities()), perfect=False)
        try:
            tokens.append(int(decoder.decode(model)))
        except AssertionError as error:  # raised by the library for an invalid code
            raise LZPenaltyError(f"this is not a code of this model: {error}") from None
        predictor.push(tokens[-1])
    return tokens


def _weights(probabilities: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Return the distribution in whole numbers, less 1 for every token, so that both sides code without rounding.

    The library adds 1 to every token and scales the rest to a sum of 2^24; here its scale is exactly 1.
    """
    spare = 2**PRECISION - len(probabilities)
    if spare <= 0:
        raise LZPenaltyError(f"a vocabulary of {len(probabilities):,}: must be below {2**PRECISION:,}.")
    wide = probabilities.astype(np.float64)
    weights = np.floor(wide * (spare / wide.sum()))
    weights[np.argmax(wide)] += spare - weights.sum()
    return weights


def _shortest(encoder: constriction.stream.queue.RangeEncoder) -> tuple[int, int]:
    """Return length and value of the shortest bit string whose continuations are all in the coder's last interval.

    The library rounds up to whole words of 32 bits. An interval of width `w` contains a whole dyadic interval of
    `ceil(-log2 w) + 1` bits, which explains the 2 bits of the paper's bound.
    """
    words, (lower, width) = encoder.pos()
    scale = words * WORD + STATE
    sealed = encoder.get_compressed()
    point = int.from_bytes(sealed.astype(">u4").tobytes(), "big") << STATE >> max(0, len(sealed) - words) * WORD
    lowest = point - (point - lower) % 2**STATE  # the state contains the lower end without the words that were written
    for bits in range(scale + 1):
        step = 1 << (scale - bits)
        number = -(-lowest // step)
        if (number + 1) * step <= lowest + width:
            return bits, number
    raise AssertionError("an interval contains at least one point")
