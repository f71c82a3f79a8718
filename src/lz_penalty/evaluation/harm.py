"""Measure the harm of a penalty: how much worse the penalised model predicts text that is as it should be.

Nothing is generated. The texts are prose, code, JSON and Markdown, or texts of one's own, and the right answers of copying
tasks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lz_penalty.errors import LZPenaltyError
from lz_penalty.evaluation.bits import (
    MAX_TOKENS,
    Case,
    CopyCost,
    Estimate,
    Measured,
    Tick,
    copy_cost,
    estimate,
    measured_by_kind,
)
from lz_penalty.evaluation.copying import CopyTask
from lz_penalty.evaluation.loading import Loaded
from lz_penalty.evaluation.penalties import Penalty
from lz_penalty.evaluation.texts import Text

__all__ = ["Harm", "TextCost", "measure_harm", "text_cost"]


@dataclass(frozen=True)
class TextCost:
    """What one penalty does to texts of one kind."""

    kind: str
    texts: int
    tokens: int
    bits: float  # per token without the penalty
    cost: Estimate  # how many bits per token more with the penalty; the interval is over texts
    right: float  # share of tokens that greedy decoding gets right without the penalty
    lost: float  # share of those that it gets wrong because of the penalty


@dataclass(frozen=True)
class Harm:
    """The harm of one penalty; the last of `copies` is all kinds together."""

    penalty: str
    texts: list[TextCost]
    copies: list[CopyCost]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, with `None` for infinity."""
        return _finite(asdict(self))


def measure_harm(
    loaded: Loaded,
    penalties: Sequence[Penalty],
    texts: Sequence[Text],
    tasks: Sequence[CopyTask] = (),
    *,
    chat: bool = False,
    tick: Tick = lambda count: None,
) -> list[Harm]:
    """Measure what each penalty does to each kind of text and, if there are tasks, to copies.

    Args:
        loaded: the model. It reads each text and task once for all penalties.
        penalties: change the logits.
        texts: given to the model as they are, without a chat template.
        tasks: copying tasks.
        chat: whether their prompts are put into the chat template.
        tick: called with the number of texts and tasks done.
    """
    copies = copy_cost(loaded, tasks, penalties, chat=chat, tick=tick) if tasks else [[] for _ in penalties]
    costs = text_cost(loaded, texts, penalties, tick=tick)
    return [
        Harm(one.name, of_texts, of_copies) for one, of_texts, of_copies in zip(penalties, costs, copies, strict=True)
    ]


def text_cost(
    loaded: Loaded,
    texts: Sequence[Text],
    penalties: Sequence[Penalty],
    *,
    limit: int = MAX_TOKENS,
    tick: Tick = lambda count: None,
) -> list[list[TextCost]]:
    """Return, for each penalty, its cost for each kind of text, in the order of the kinds' first texts.

    At most `limit` tokens of each text are measured. A cost is infinite if the penalty forbids a token of a text.
    """
    found = measured_by_kind(loaded, _cases(loaded, texts, limit), penalties, tick)
    return [[_summary(kind, group) for kind, group in by_kind.items()] for by_kind in found]


def _cases(loaded: Loaded, texts: Sequence[Text], limit: int) -> Iterator[Case]:
    for text in texts:
        ids = loaded.tokenizer(text.text, verbose=False).input_ids[:limit]
        if len(ids) < 2:
            raise LZPenaltyError(f"{text.source}, {text.name}: has {len(ids)} tokens; must have at least 2.")
        yield Case(text.kind, ids)


def _summary(kind: str, group: list[Measured]) -> TextCost:
    tokens = sum(one.tokens for one in group)
    right = sum(one.right for one in group)
    lost = sum(one.lost for one in group)
    return TextCost(
        kind=kind,
        texts=len(group),
        tokens=tokens,
        bits=sum(one.bits for one in group) / tokens,
        cost=estimate([one.cost for one in group]),
        right=right / tokens,
        lost=lost / right if right else 0.0,
    )


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
