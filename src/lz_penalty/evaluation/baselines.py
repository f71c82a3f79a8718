"""The penalties that the LZ penalty is compared with, as transformers `LogitsProcessor`s.

They are the repetition, frequency and presence penalty, DRY and the n-gram ban; `baseline` makes any of them by name. Each is
a pure function of the history and returns new scores. Left pads are left out. `penalise_` penalises many rows at once, for
example all prefixes of one text. `vllm_baselines` has DRY and the n-gram ban for vLLM.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from lz_penalty._checks import MAX_TOKEN_ID, integer, real
from lz_penalty.config import MAX_WEIGHT
from lz_penalty.errors import LZPenaltyError, bad_value, did_you_mean, show
from lz_penalty.evaluation._counts import (
    MAX_LENGTH,
    Baseline,
    FrequencyPenaltyLogitsProcessor,
    PresencePenaltyLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)
from lz_penalty.evaluation._repeats import (
    FLOAT32_MAX,
    MAX_BREAKER,
    Breakers,
    Rows,
    ban_ngrams_,
    breaker_masks,
    dry_settings,
    lower_repeats_,
    max_exponent,
)
from lz_penalty.loops import trailing_runs
from lz_penalty.policy import vocabulary_of

__all__ = [
    "BASELINES",
    "Baseline",
    "DRYLogitsProcessor",
    "FrequencyPenaltyLogitsProcessor",
    "NoRepeatNGramLogitsProcessor",
    "PresencePenaltyLogitsProcessor",
    "RepetitionPenaltyLogitsProcessor",
    "baseline",
    "usual_breakers",
]

MAX_SIZE = 65_536  # of an n-gram, and of the repeats that DRY allows
USUAL_BREAKERS = '\n:"*'


# ---------------------------------------------------------------- DRY


class DRYLogitsProcessor(Baseline):
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
    ids; `usual_breakers` returns those of a tokenizer. `penalties` is the plain definition; calls compute the same on the
    device, for all rows at once.

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
        super().__init__(pad_token_id)
        self.multiplier = real(0, MAX_WEIGHT)("multiplier", multiplier)
        self.base = real(1, MAX_WEIGHT)("base", base)
        self.allowed_length: int = integer(0, MAX_SIZE)("allowed_length", allowed_length)
        self.last_n: int = integer(-1, MAX_LENGTH)("last_n", last_n)
        self.breakers = _breakers(breakers)
        self._tails: dict[int, list[tuple[int, ...]]] = {}  # a breaker's first token -> its other tokens, longest first
        for head, *tail in sorted(self.breakers, key=len, reverse=True):
            self._tails.setdefault(head, []).append(tuple(tail))
        self._spared = {breaker[0] for breaker in self.breakers if len(breaker) == 1}
        self._sent: tuple[torch.Tensor, Breakers | None] | None = None  # to the device of the last scores

    def _penalise_rows_(self, scores: torch.Tensor, rows: Rows) -> None:
        if self.multiplier and self.last_n:
            lower_repeats_(scores, rows, *self._sent_to(scores.device))

    def _sent_to(self, device: torch.device) -> tuple[torch.Tensor, Breakers | None]:
        """Return the settings and the breakers on this device; they are sent once."""
        if self._sent is None or self._sent[0].device != device:
            row = dry_settings(self.multiplier, self.base, self.allowed_length, self.last_n)
            sequences = [breaker for breaker in self.breakers if len(breaker) > 1]
            breakers = Breakers(breaker_masks([sorted(self._spared)], device), sequences) if self.breakers else None
            self._sent = torch.tensor([row], dtype=torch.float64, device=device), breakers
        return self._sent

    def request(self) -> dict[str, Any]:
        """Return the arguments of vLLM's `SamplingParams` that ask `vllm_baselines` for this penalty.

        Raises:
            LZPenaltyError: a breaker has more than one token, which only this class can use.
        """
        if len(self._spared) < len(set(self.breakers)):
            raise bad_value("breakers", self.breakers, "single tokens for vLLM")
        return {
            "extra_args": {
                "dry_multiplier": self.multiplier,
                "dry_base": self.base,
                "dry_allowed_length": self.allowed_length,
                "dry_last_n": self.last_n,
                "dry_breakers": sorted(self._spared),
            }
        }

    def penalties(self, tokens: Sequence[int]) -> dict[int, float]:
        """Return what each token loses after this history; tokens that lose nothing are not listed. It is slow.

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
        exponent = min(repeat - self.allowed_length, max_exponent(self.base))
        return min(self.multiplier * self.base**exponent, FLOAT32_MAX)


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


@lru_cache(maxsize=4)
def usual_breakers(tokenizer: Any) -> tuple[int, ...]:
    """Return the ids of all tokens whose text contains one of DRY's usual breakers: a newline, `:`, `"` or `*`.

    Each of these tokens is a breaker by itself. This is simpler than llama.cpp, which also finds sequences of tokens that
    contain a breaker together. A single character is always inside one token, so these breakers need no sequences.
    """
    characters = USUAL_BREAKERS.encode()
    return tuple(i for i, text in enumerate(vocabulary_of(tokenizer)) if any(one in text for one in characters))


# ---------------------------------------------------------------- the n-gram ban


class NoRepeatNGramLogitsProcessor(Baseline):
    """The n-gram ban of transformers: a token that would complete an n-gram of the input a second time is forbidden.

        for i in range(len(input_ids) - size + 1):
            if input_ids[i : i + size - 1] == input_ids[len(input_ids) - size + 1 :]:
                scores[input_ids[i + size - 1]] = -inf

    Args:
        ngram_size: 1 to 65,536.
        pad_token_id: a leading run of this token is left out. transformers' own processor counts it.

    >>> ban = NoRepeatNGramLogitsProcessor(3)
    >>> ban(torch.tensor([[1, 2, 3, 0, 1, 2]]), torch.zeros(1, 4))
    tensor([[0., 0., 0., -inf]])
    """

    def __init__(self, ngram_size: int, *, pad_token_id: int | None = None) -> None:
        super().__init__(pad_token_id)
        self.ngram_size: int = integer(1, MAX_SIZE)("ngram_size", ngram_size)

    def _penalise_rows_(self, scores: torch.Tensor, rows: Rows) -> None:
        ban_ngrams_(scores, rows, torch.full((1,), self.ngram_size, device=scores.device))

    def request(self) -> dict[str, Any]:
        """Return the arguments of vLLM's `SamplingParams` that ask `vllm_baselines` for this penalty."""
        return {"extra_args": {"no_repeat_ngram_size": self.ngram_size}}


# ---------------------------------------------------------------- by name


BASELINES: Mapping[str, float] = {  # with their usual strengths
    "repetition": 1.2,
    "no-repeat-ngram": 3,
    "frequency": 0.3,
    "presence": 0.5,
    "dry": 0.8,
}
_COUNTING = {"frequency": FrequencyPenaltyLogitsProcessor, "presence": PresencePenaltyLogitsProcessor}


def baseline(
    name: str,
    value: float | None = None,
    *,
    prompt_length: int | None = 0,
    pad_token_id: int | None = None,
    **settings: Any,
) -> Baseline:
    """Return the penalty with this name. Make a new one for every prompt length.

    Args:
        name: a key of `BASELINES`.
        value: its strength; `None` for the usual one.
        prompt_length: columns that are prompt. Frequency and presence do not count them; the others always use the whole
            input.
        pad_token_id: left pads, which are left out.
        settings: further arguments of `DRYLogitsProcessor`; the others have none.

    >>> baseline("dry", 1.0).multiplier
    1.0
    >>> baseline("repitition")
    Traceback (most recent call last):
    lz_penalty.errors.LZPenaltyError: 'repitition': unknown penalty. Did you mean repetition? Known: ...
    """
    if not isinstance(name, str) or name not in BASELINES:
        near = did_you_mean(name, BASELINES)
        raise LZPenaltyError(f"{show(name)}: unknown penalty.{near} Known: {', '.join(BASELINES)}.")
    value = BASELINES[name] if value is None else value
    if settings and name != "dry":
        raise LZPenaltyError(f"{name} takes a value alone: {', '.join(map(repr, settings))} must be left out.")
    if name == "repetition":
        return RepetitionPenaltyLogitsProcessor(real(0.01, MAX_WEIGHT)(name, value), pad_token_id=pad_token_id)
    if name == "no-repeat-ngram":
        whole = int(value) if isinstance(value, float) and value.is_integer() else value
        return NoRepeatNGramLogitsProcessor(integer(1, MAX_SIZE)(name, whole), pad_token_id=pad_token_id)
    if name == "dry":
        return DRYLogitsProcessor(real(0, MAX_WEIGHT)(name, value), pad_token_id=pad_token_id, **settings)
    if name in _COUNTING:
        strength = real(-MAX_WEIGHT, MAX_WEIGHT)(name, value)
        return _COUNTING[name](strength, prompt_length, pad_token_id=pad_token_id)
    others = ", ".join(other for other in BASELINES if other != name)
    raise LZPenaltyError(
        f"{show(name)}: listed in BASELINES, but `baseline` has no case that makes it. Add a case, or use one of: {others}."
    )
