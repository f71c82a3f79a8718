"""The penalties that the LZ penalty is compared with, as transformers `LogitsProcessor`s: frequency, presence and DRY.

The repetition penalty and the n-gram ban are transformers' own; `baseline` makes any of the five by name. Each is a pure
function of `input_ids` and returns new scores.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from transformers import LogitsProcessor, NoRepeatNGramLogitsProcessor, RepetitionPenaltyLogitsProcessor

from lz_penalty._checks import MAX_TOKEN_ID, integer, real
from lz_penalty.config import MAX_WEIGHT
from lz_penalty.errors import LZPenaltyError, bad_value, closest, show
from lz_penalty.loops import trailing_runs

__all__ = [
    "BASELINES",
    "DRYLogitsProcessor",
    "FrequencyPenaltyLogitsProcessor",
    "PresencePenaltyLogitsProcessor",
    "baseline",
]

MAX_LENGTH = 2**31 - 1
MAX_BREAKER = 21  # as in llama.cpp, a first token and at most 20 after it; bounds the work per context token
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_FLOAT32_MAX_LOG = np.float32(88.7228391)  # llama.cpp's constant


# ---------------------------------------------------------------- counting penalties


class _CountPenalty(LogitsProcessor):
    """The common part of frequency and presence penalty: which tokens count, and how often they occur."""

    def __init__(self, penalty: float, prompt_length: int | None = 0, *, pad_token_id: int | None = None) -> None:
        self.penalty = real(-MAX_WEIGHT, MAX_WEIGHT)("penalty", penalty)
        self.prompt_length = integer(0, MAX_LENGTH, optional=True)("prompt_length", prompt_length) or 0
        self.pad_token_id = integer(0, MAX_TOKEN_ID, optional=True)("pad_token_id", pad_token_id)

    def _amount(self, counts: torch.Tensor) -> torch.Tensor:
        """Return what a token that was counted `counts` times loses."""
        raise NotImplementedError

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return a penalised copy of `scores [rows, vocab]` for the histories `input_ids [rows, length]`."""
        rows, length = input_ids.shape
        if length < self.prompt_length:
            raise LZPenaltyError(
                f"prompt_length = {self.prompt_length}: the input has {length} tokens only. Make a new processor for "
                "every prompt length, or count the prompt as well with prompt_length=None."
            )
        counted = (input_ids >= 0) & (input_ids < scores.shape[1])  # a model may embed more ids than it can emit
        if self.pad_token_id is not None:
            counted &= (input_ids != self.pad_token_id).cumsum(1) > 0
        counted = counted[:, self.prompt_length :]
        # A token that is not counted becomes token 0 with weight 0: no index is out of range, and the host does not wait.
        tokens = torch.where(counted, input_ids[:, self.prompt_length :].long(), 0)
        counts = torch.zeros(scores.shape, dtype=_wide(scores), device=scores.device)
        counts = counts.scatter_add_(1, tokens, counted.to(counts.dtype)).gather(1, tokens)
        row = torch.arange(rows, device=scores.device)[:, None].expand_as(tokens)
        return _lowered(scores, row, tokens, self._amount(counts))


class FrequencyPenaltyLogitsProcessor(_CountPenalty):
    """OpenAI's frequency penalty: a token loses `penalty` for each time it was generated.

        for token in set(input_ids[prompt_length:]):
            scores[token] -= penalty * input_ids[prompt_length:].count(token)

    Args:
        penalty: -100 to 100 (OpenAI allows -2 to 2); below 0 it rewards.
        prompt_length: how many leading columns are prompt and do not count, left pads included; 0 or `None` count the
            whole input.
        pad_token_id: a leading run of this token does not count, for left-padded batches with the prompt counted.

    >>> penalise = FrequencyPenaltyLogitsProcessor(0.5, prompt_length=1)
    >>> penalise(torch.tensor([[0, 2, 2, 1]]), torch.zeros(1, 3))
    tensor([[ 0.0000, -0.5000, -1.0000]])
    """

    def _amount(self, counts: torch.Tensor) -> torch.Tensor:
        return self.penalty * counts


class PresencePenaltyLogitsProcessor(_CountPenalty):
    """OpenAI's presence penalty: a token that was generated at all loses `penalty`, once.

        for token in set(input_ids[prompt_length:]):
            scores[token] -= penalty

    The arguments are those of `FrequencyPenaltyLogitsProcessor`.

    >>> penalise = PresencePenaltyLogitsProcessor(0.5, prompt_length=1)
    >>> penalise(torch.tensor([[0, 2, 2, 1]]), torch.zeros(1, 3))
    tensor([[ 0.0000, -0.5000, -0.5000]])
    """

    def _amount(self, counts: torch.Tensor) -> torch.Tensor:
        return self.penalty * (counts > 0)


# ---------------------------------------------------------------- DRY


class DRYLogitsProcessor(LogitsProcessor):
    """DRY ("don't repeat yourself") with llama.cpp's semantics: a token that extends a long repeat loses exponentially more.

        tokens = input_ids without its leading pads, the last last_n of them
        limit = tokens after the newest breaker                 # all of them if there is none
        for distance in 1 .. len(tokens) - 1:
            repeat = trailing items that equal the item `distance` before them, at most limit
            if repeat >= allowed_length:
                length[tokens[-distance]] = max(repeat, length[tokens[-distance]])
        for token, repeat in length.items():                    # tokens that are breakers themselves are spared
            scores[token] -= multiplier * base ** min(repeat - allowed_length, max_exponent)

    `max_exponent = log(float32 max) / log(base)` keeps the power finite. There is one difference from llama.cpp: if its
    product with a multiplier above 1 becomes infinite, the largest finite penalty is used here, so that a finite score
    stays finite. llama.cpp derives its breakers from text and finds every token that overlaps it. Here breakers are token
    ids, so name, for example, every token that contains a newline. `input_ids` are read on the host: one sync per call.

    Args:
        multiplier: 0 to 100; 0 is off.
        base: 1 to 100.
        allowed_length: repeats shorter than this are free; 0 to 65,536.
        last_n: how many past tokens are searched; -1 for all, 0 is off.
        breakers: token ids, or sequences of up to 21 token ids, that end a repeat.
        pad_token_id: a leading run of this token is left out, for left-padded batches.

    >>> penalise = DRYLogitsProcessor(multiplier=1.0, base=2.0)
    >>> penalise(torch.tensor([[0, 1, 2, 3, 0, 1, 2]]), torch.zeros(1, 5))
    tensor([[ 0.,  0.,  0., -2.,  0.]])
    """

    def __init__(
        self,
        multiplier: float = 0.8,
        base: float = 1.75,
        allowed_length: int = 2,
        last_n: int = -1,
        breakers: Iterable[int | Sequence[int]] = (),
        *,
        pad_token_id: int | None = None,
    ) -> None:
        self.multiplier = real(0, MAX_WEIGHT)("multiplier", multiplier)
        self.base = real(1, MAX_WEIGHT)("base", base)
        self.allowed_length: int = integer(0, 65_536)("allowed_length", allowed_length)
        self.last_n: int = integer(-1, MAX_LENGTH)("last_n", last_n)
        self.breakers = _breakers(breakers)
        self.pad_token_id = integer(0, MAX_TOKEN_ID, optional=True)("pad_token_id", pad_token_id)
        self._max_exponent = _max_exponent(self.base)
        self._tails: dict[int, list[tuple[int, ...]]] = {}  # a breaker's first token -> its other tokens, longest first
        for head, *tail in sorted(self.breakers, key=len, reverse=True):
            self._tails.setdefault(head, []).append(tuple(tail))
        self._spared = {breaker[0] for breaker in self.breakers if len(breaker) == 1}

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return a penalised copy of `scores [rows, vocab]` for the histories `input_ids [rows, length]`."""
        vocab = scores.shape[1]
        where: list[tuple[int, int]] = []
        amounts: list[float] = []
        for row, tokens in enumerate(input_ids.tolist() if self.multiplier and self.last_n else ()):
            for token, penalty in self.penalties(tokens).items():
                if 0 <= token < vocab:
                    where.append((row, token))
                    amounts.append(penalty)
        if not where:
            return scores.clone()
        rows, columns = torch.tensor(where, device=scores.device).T
        return _lowered(scores, rows, columns, torch.tensor(amounts, dtype=_wide(scores), device=scores.device))

    def penalties(self, tokens: Sequence[int]) -> dict[int, float]:
        """Return what each token loses after this history; tokens that lose nothing are not listed.

        >>> DRYLogitsProcessor().penalties([5, 6, 7, 8, 5, 6])
        {7: 0.8}
        """
        tokens = self._searched(tokens)
        n = len(tokens)
        if n <= self.allowed_length or not self.multiplier:
            return {}
        limit = self._since_breaker(tokens)
        if limit < self.allowed_length:
            return {}
        longest: dict[int, int] = {}
        for distance, run in enumerate(trailing_runs(tokens)):
            if run >= self.allowed_length and distance:
                token = tokens[n - distance]
                longest[token] = max(min(run, limit), longest.get(token, 0))
        return {token: self._penalty(repeat) for token, repeat in longest.items() if token not in self._spared}

    def _searched(self, tokens: Sequence[int]) -> Sequence[int]:
        """Return the history without its leading pads, cut to the last `last_n`."""
        begin = next((i for i, token in enumerate(tokens) if token != self.pad_token_id), len(tokens))
        if self.last_n >= 0:
            begin = max(begin, len(tokens) - self.last_n)
        return tokens[begin:] if begin else tokens

    def _since_breaker(self, tokens: Sequence[int]) -> int:
        """Return how many tokens follow the newest breaker (by its first token; the longest of those that match)."""
        n = len(tokens)
        for begin in range(n - 1, -1, -1) if self._tails else ():
            for tail in self._tails.get(tokens[begin], ()):
                end = begin + 1 + len(tail)
                if end <= n and tuple(tokens[begin + 1 : end]) == tail:
                    return n - end
        return n

    def _penalty(self, repeat: int) -> float:
        exponent = min(repeat - self.allowed_length, self._max_exponent)
        return min(self.multiplier * self.base**exponent, _FLOAT32_MAX)


def _max_exponent(base: float) -> float:
    """Return the largest whole exponent whose power of `base` is a finite float32, computed in float32 like llama.cpp."""
    if np.float32(base) <= np.float32(1.000001):
        return math.inf
    return int(_FLOAT32_MAX_LOG / np.log(np.float32(base)))


def _breakers(given: Iterable[int | Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    allowed = f"token ids from 0 to {MAX_TOKEN_ID}, or sequences of 1 to {MAX_BREAKER} of them"
    hint = "Turn text into ids with the tokenizer first."
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise bad_value("breakers", given, allowed, hint)
    check = integer(0, MAX_TOKEN_ID)
    found = []
    for item in given:
        if isinstance(item, (str, bytes)) or not isinstance(item, (numbers.Integral, Iterable)):
            raise bad_value("breakers", item, allowed, hint)
        ids = tuple(check("breakers", token) for token in ([item] if isinstance(item, numbers.Integral) else item))
        if not 1 <= len(ids) <= MAX_BREAKER:
            raise bad_value("breakers", item, allowed)
        found.append(ids)
    return tuple(found)


# ---------------------------------------------------------------- by name


BASELINES: Mapping[str, float] = {  # with their usual strengths
    "repetition": 1.2,
    "no-repeat-ngram": 3,
    "frequency": 0.3,
    "presence": 0.5,
    "dry": 0.8,
}


def baseline(
    name: str, value: float | None = None, *, prompt_length: int | None = 0, pad_token_id: int | None = None
) -> LogitsProcessor:
    """Return the penalty with this name. Make a new one for every prompt length.

    Args:
        name: a key of `BASELINES`.
        value: its strength; `None` for the usual one.
        prompt_length: columns that are prompt. Frequency and presence do not count them; the others always use the whole
            input.
        pad_token_id: left pads, ignored by frequency, presence and DRY; transformers' own two count them as tokens.

    >>> baseline("dry", 1.0).multiplier
    1.0
    >>> baseline("repitition")
    Traceback (most recent call last):
    lz_penalty.errors.LZPenaltyError: 'repitition': unknown penalty. Did you mean 'repetition'? Known: ...
    """
    if not isinstance(name, str) or name not in BASELINES:
        close = closest(name, BASELINES)
        raise LZPenaltyError(f"{show(name)}: unknown penalty. Did you mean {close!r}? Known: {', '.join(BASELINES)}.")
    value = BASELINES[name] if value is None else value
    if name == "repetition":
        return RepetitionPenaltyLogitsProcessor(real(0.01, MAX_WEIGHT)(name, value))
    if name == "no-repeat-ngram":
        whole = int(value) if isinstance(value, float) and value.is_integer() else value
        return NoRepeatNGramLogitsProcessor(integer(1, 65_536)(name, whole))
    if name == "dry":
        return DRYLogitsProcessor(real(0, MAX_WEIGHT)(name, value), pad_token_id=pad_token_id)
    kind = FrequencyPenaltyLogitsProcessor if name == "frequency" else PresencePenaltyLogitsProcessor
    return kind(real(-MAX_WEIGHT, MAX_WEIGHT)(name, value), prompt_length, pad_token_id=pad_token_id)


def _wide(scores: torch.Tensor) -> torch.dtype:
    """Return the type to compute in; bfloat16 cannot represent all counts above 256."""
    return torch.promote_types(scores.dtype, torch.float32)


def _lowered(scores: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, amount: torch.Tensor) -> torch.Tensor:
    """Return a copy of `scores` with `amount` subtracted at (rows, columns); equal positions must have equal amounts.

    The computation uses float32 or wider. A finite score stays finite, also in a narrow type, and -inf stays -inf.
    """
    old = scores[rows, columns]
    new = old.to(_wide(scores)) - amount
    limits = torch.finfo(scores.dtype)
    new = torch.where(old.isfinite(), new.clamp(limits.min, limits.max), old)
    return scores.index_put((rows, columns), new.to(scores.dtype))
