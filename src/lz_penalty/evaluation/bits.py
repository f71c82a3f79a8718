"""Measure what a penalty costs in bits: how much worse the penalised model predicts text that is as it should be.

No text is generated, so the cost depends on no benchmark: it is measured token by token on given text. That is human text,
or the right answers of copying tasks. A small model cannot follow an instruction, but every model gives a probability to the
right copy after the prompt that contains its source. The probabilities also show at which tokens greedy decoding would leave
the copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from lz_penalty.engines.transformers import LZPolicyLogitsProcessor
from lz_penalty.errors import LZPenaltyError
from lz_penalty.evaluation.copying import CopyTask
from lz_penalty.evaluation.loading import Loaded
from lz_penalty.evaluation.penalties import Penalty
from lz_penalty.evaluation.prompting import prompt_ids
from lz_penalty.ops import apply_lz_penalty_

__all__ = [
    "Case",
    "CopyCost",
    "Estimate",
    "Forced",
    "Measured",
    "Tick",
    "copy_cost",
    "estimate",
    "forced_by_each",
    "human_text_cost",
    "measured_by_kind",
    "teacher_forced",
]

MAX_TOKENS = 1024
RESAMPLES = 10_000
Tick = Callable[[int], None]  # called with the number of steps done


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % confidence interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class CopyCost:
    """What one penalty does to copies of one kind."""

    kind: str  # or `all`
    tasks: int
    tokens: int
    bits: float  # per token of the copies without the penalty
    cost: Estimate  # how many bits per token more with the penalty; the interval is over tasks
    stays: float  # share of tokens at which greedy decoding without the penalty stays on the copy
    leaves: float  # share of tokens at which it stays without the penalty and leaves because of it
    returns: float  # the opposite of `leaves`
    spoilt: float  # share of tasks with a token at which it leaves because of the penalty


class Case(NamedTuple):
    """A text of some kind that the model reads. The first `prompt_length` of its tokens are the prompt."""

    kind: str
    ids: list[int]
    prompt_length: int = 0


class Measured(NamedTuple):
    """What a penalty does to one text."""

    tokens: int
    bits: float  # of all tokens without the penalty
    cost: float  # how many bits per token more with the penalty
    right: int  # tokens that greedy decoding would write without the penalty
    lost: int  # of those, tokens that it would not write with the penalty
    gained: int  # the opposite of `lost`


class Forced(NamedTuple):
    """How a model predicts each token of a given text, without and with a penalty; tensors `[tokens]`."""

    plain: torch.Tensor  # bits of the token
    penalised: torch.Tensor
    plain_stays: torch.Tensor  # whether it is the most probable token, so that greedy decoding would write it
    penalised_stays: torch.Tensor

    @property
    def lost(self) -> int:
        """How many tokens greedy decoding would write without the penalty, and not with it."""
        return int((self.plain_stays & ~self.penalised_stays).sum())

    def measured(self) -> Measured:
        """Return the numbers for the whole text."""
        return Measured(
            tokens=len(self.plain),
            bits=float(self.plain.sum()),
            cost=float((self.penalised - self.plain).mean()),
            right=int(self.plain_stays.sum()),
            lost=self.lost,
            gained=int((~self.plain_stays & self.penalised_stays).sum()),
        )


def human_text_cost(
    loaded: Loaded,
    texts: Sequence[str],
    penalty: Penalty,
    *,
    limit: int = MAX_TOKENS,
    tick: Tick = lambda count: None,
) -> Estimate:
    """Return how many bits per token worse the penalised model predicts these texts, which people wrote.

    At most `limit` tokens of each text are measured; the mean and its interval are over texts. The mean is infinite if the
    penalty forbids a token of a text. `tick` is called with the number of texts done.
    """
    costs = []
    for text in texts:
        forced = teacher_forced(loaded, loaded.tokenizer(text).input_ids[:limit], penalty)
        costs.append(forced.measured().cost)
        tick(1)
    return estimate(costs)


def copy_cost(
    loaded: Loaded,
    tasks: Sequence[CopyTask],
    penalties: Sequence[Penalty],
    *,
    chat: bool = False,
    tick: Tick = lambda count: None,
) -> list[list[CopyCost]]:
    """Return, for each penalty, its cost for each kind of task; the last one, `all`, is for all kinds together.

    With `chat`, the model reads the copy as the answer to the prompt in its chat template. Otherwise it reads the prompt, an
    empty line and the copy.
    """
    costs = []
    for by_kind in measured_by_kind(loaded, (_case(loaded, task, chat) for task in tasks), penalties, tick):
        everything = [one for group in by_kind.values() for one in group]
        costs.append([_summary(kind, group) for kind, group in (by_kind | {"all": everything}).items()])
    return costs


def _case(loaded: Loaded, task: CopyTask, chat: bool) -> Case:
    prompt = prompt_ids(loaded.tokenizer, task.prompt if chat else task.prompt + "\n\n", chat)
    copy = loaded.tokenizer(task.expected, add_special_tokens=False).input_ids
    return Case(task.kind, [*prompt, *copy], len(prompt))


def _summary(kind: str, group: list[Measured]) -> CopyCost:
    tokens = sum(one.tokens for one in group)
    return CopyCost(
        kind=kind,
        tasks=len(group),
        tokens=tokens,
        bits=sum(one.bits for one in group) / tokens,
        cost=estimate([one.cost for one in group]),
        stays=sum(one.right for one in group) / tokens,
        leaves=sum(one.lost for one in group) / tokens,
        returns=sum(one.gained for one in group) / tokens,
        spoilt=sum(one.lost > 0 for one in group) / len(group),
    )


def measured_by_kind(
    loaded: Loaded, cases: Iterable[Case], penalties: Sequence[Penalty], tick: Tick
) -> list[dict[str, list[Measured]]]:
    """Return, for each penalty, the numbers of the texts of each kind; the model reads each text only once.

    No tensor of a text is kept: small tensors between large ones that are freed would fragment the memory. `tick` is called
    with the number of texts done.
    """
    found: list[dict[str, list[Measured]]] = [{} for _ in penalties]
    for kind, ids, prompt_length in cases:
        for by_kind, forced in zip(found, forced_by_each(loaded, ids, penalties, prompt_length), strict=True):
            by_kind.setdefault(kind, []).append(forced.measured())
        tick(1)
    return found


def teacher_forced(loaded: Loaded, ids: Sequence[int], penalty: Penalty, prompt_length: int = 0) -> Forced:
    """Return how the model predicts each token after the prompt, given all tokens before it.

    The first `prompt_length` of `ids` are the prompt. Without a prompt, the first token is not predicted.
    """
    return forced_by_each(loaded, ids, [penalty], prompt_length)[0]


@torch.no_grad()
def forced_by_each(
    loaded: Loaded, ids: Sequence[int], penalties: Sequence[Penalty], prompt_length: int = 0
) -> list[Forced]:
    """Return `teacher_forced` for each penalty; the model reads the text only once."""
    first = max(1, prompt_length)
    if len(ids) <= first:
        raise LZPenaltyError(f"a text of {len(ids)} tokens, {first} of them given: none is left to predict.")
    model, tokenizer = loaded
    tokens = torch.tensor([list(ids)], device=model.device)
    plain = model(tokens).logits[0, first - 1 : -1].float()
    following = tokens[0, first:]
    bits, stays = _predicted(plain, following)
    found = []
    for penalty in penalties:
        processors = penalty.make(tokenizer, prompt_length)
        worse, still = _predicted(_penalised(plain, tokens, processors, first, prompt_length), following)
        found.append(Forced(bits, worse, stays, still))
    return found


def _predicted(logits: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the bits of each token, and whether it is the most probable one."""
    bits = -logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0] / math.log(2)
    return bits, logits.argmax(-1) == tokens


def _penalised(
    plain: torch.Tensor, tokens: torch.Tensor, processors: list[Any], first: int, prompt_length: int
) -> torch.Tensor:
    """Return the logits after each prefix, penalised by the tokens of that prefix; the shortest has `first` tokens.

    Every penalty takes all prefixes of the history at once. A policy takes them one after the other, as in `generate`.
    """
    if not processors:
        return plain
    penalised, count, device = plain.clone(), plain.shape[0], tokens.device
    ends = torch.arange(first, first + count, device=device)
    rows = torch.zeros(count, dtype=torch.int64, device=device)
    for processor in processors:
        if isinstance(processor, LZPolicyLogitsProcessor):
            for row, end in enumerate(ends.tolist()):
                penalised[row] = processor(tokens[:, :end], penalised[row : row + 1])[0]
        elif hasattr(processor, "config"):
            starts = rows if processor.config.include_prompt else rows + prompt_length
            apply_lz_penalty_(penalised, tokens, ends, config=processor.config, row_to_slot=rows, starts=starts)
        else:
            processor.penalise_(penalised, tokens, ends, rows)
    return penalised


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of independent values and its bootstrap interval, which uses a fixed seed.

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
