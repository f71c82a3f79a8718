"""What a penalty costs in bits: how much worse the penalised model predicts text that is as it should be.

No text is generated, so nothing here depends on a benchmark: the harm is measured token by token on given text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from lz_penalty.errors import LZPenaltyError
from lz_penalty.evaluation.generation import Loaded
from lz_penalty.evaluation.penalties import Penalty
from lz_penalty.ops import apply_lz_penalty_

__all__ = ["Estimate", "Forced", "estimate", "human_text_cost", "teacher_forced"]

MAX_TOKENS = 1024
RESAMPLES = 10_000


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % confidence interval."""

    mean: float
    low: float
    high: float


class Forced(NamedTuple):
    """What a model says of each token of a given text, without and with a penalty; tensors `[tokens]`.

    Args:
        plain, penalised: bits of the token.
        plain_stays, penalised_stays: whether it is the most probable one, so that greedy decoding would write it.
    """

    plain: torch.Tensor
    penalised: torch.Tensor
    plain_stays: torch.Tensor
    penalised_stays: torch.Tensor


def human_text_cost(
    loaded: Loaded,
    texts: Sequence[str],
    penalty: Penalty,
    *,
    limit: int = MAX_TOKENS,
    tick: Callable[[int], None] = lambda count: None,
) -> Estimate:
    """How many bits per token worse the penalised model predicts these texts, which people wrote.

    Args:
        loaded: the model.
        texts: passages; the interval is over them. `bundled_model.passages()` has some.
        penalty: as `penalties.penalty` gives it.
        limit: tokens of each passage that are looked at.
        tick: called with the number of passages done.

    Returns:
        The mean over passages; infinite where the penalty rules out a token that stands there.
    """
    costs = []
    for text in texts:
        forced = teacher_forced(loaded, loaded.tokenizer(text).input_ids[:limit], penalty)
        costs.append(float((forced.penalised - forced.plain).mean()))
        tick(1)
    return estimate(costs)


@torch.no_grad()
def teacher_forced(loaded: Loaded, ids: Sequence[int], penalty: Penalty, prompt_length: int = 0) -> Forced:
    """What the model says of the tokens after the prompt, each after all tokens before it.

    Args:
        loaded: the model.
        ids: prompt and text.
        penalty: what is added to the logits.
        prompt_length: how many tokens are the prompt. Without one, the first token is taken as given.
    """
    first = max(1, prompt_length)
    if len(ids) <= first:
        raise LZPenaltyError(f"a text of {len(ids)} tokens, {first} of them given: none is left to predict.")
    model, tokenizer = loaded
    tokens = torch.tensor([list(ids)], device=model.device)
    plain = model(tokens).logits[0, first - 1 : -1].float()
    penalised = _penalised(plain, tokens, penalty.make(tokenizer, prompt_length), first, prompt_length)
    following = tokens[0, first:]
    return Forced(
        _bits(plain, following),
        _bits(penalised, following),
        plain.argmax(-1) == following,
        penalised.argmax(-1) == following,
    )


def _bits(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return -logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0] / math.log(2)


def _penalised(
    plain: torch.Tensor, tokens: torch.Tensor, processors: list[Any], first: int, prompt_length: int
) -> torch.Tensor:
    """The logits after each prefix, the shortest of `first` tokens, penalised by what that prefix holds."""
    count, device = plain.shape[0], tokens.device
    for processor in processors:
        if hasattr(processor, "config"):  # the op takes all prefixes of one history at once
            ends = torch.arange(first, first + count, device=device)
            rows = torch.zeros(count, dtype=torch.int64, device=device)
            starts = rows if processor.config.include_prompt else rows + prompt_length
            plain = plain.clone()
            apply_lz_penalty_(plain, tokens, ends, config=processor.config, row_to_slot=rows, starts=starts)
        else:
            plain = torch.cat([processor(tokens[:, : first + i], plain[i : i + 1]) for i in range(count)])
    return plain


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of independent values, and the interval that the bootstrap gives it (always the same one).

    >>> estimate([1.0, 1.0, 1.0])
    Estimate(mean=1.0, low=1.0, high=1.0)
    """
    given = np.asarray(values, dtype=np.float64)
    if not given.size:
        raise LZPenaltyError("no values were given to estimate from.")
    if not np.isfinite(given).all():
        return Estimate(math.inf, math.inf, math.inf)
    draws = np.random.default_rng(0).integers(len(given), size=(RESAMPLES, len(given)))
    low, high = np.quantile(given[draws].mean(axis=1), [0.025, 0.975])
    return Estimate(float(given.mean()), float(low), float(high))
