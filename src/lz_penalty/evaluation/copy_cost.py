"""What a penalty costs where text must be copied: measured on the right copy, so that any model will do.

A small model cannot follow an instruction, but every model says how probable the right copy is after the prompt that
holds its source, and at which of its tokens greedy decoding would leave it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lz_penalty.evaluation.bits import Estimate, Forced, estimate, teacher_forced
from lz_penalty.evaluation.copying import CopyTask
from lz_penalty.evaluation.generation import Loaded
from lz_penalty.evaluation.penalties import Penalty

__all__ = ["ALL", "CopyCost", "copy_cost"]

ALL = "all"


@dataclass(frozen=True)
class CopyCost:
    """What one penalty does to copies of one kind.

    Args:
        kind: of the tasks, or `all`.
        tasks, tokens: how many were looked at.
        bits: per token of the copies without the penalty.
        cost: how many bits per token more it is with the penalty; the interval is over tasks.
        stays: share of tokens at which greedy decoding without the penalty stays on the copy.
        leaves: share of tokens at which it stays without the penalty and leaves because of it.
        returns: the opposite of `leaves`.
        spoilt: share of tasks with a token at which it leaves because of the penalty.
    """

    kind: str
    tasks: int
    tokens: int
    bits: float
    cost: Estimate
    stays: float
    leaves: float
    returns: float
    spoilt: float


def copy_cost(
    loaded: Loaded,
    tasks: Sequence[CopyTask],
    penalty: Penalty,
    *,
    tick: Callable[[int], None] = lambda count: None,
) -> list[CopyCost]:
    """The cost for each kind of task, and for all of them at the end.

    The model reads the prompt, an empty line and the copy; a chat template is not applied.
    """
    by_kind: dict[str, list[Forced]] = {task.kind: [] for task in tasks}
    for task in tasks:
        prompt = loaded.tokenizer(task.prompt + "\n\n").input_ids
        copy = loaded.tokenizer(task.expected, add_special_tokens=False).input_ids
        by_kind[task.kind].append(teacher_forced(loaded, [*prompt, *copy], penalty, len(prompt)))
        tick(1)
    everything = [forced for group in by_kind.values() for forced in group]
    return [_summary(kind, group) for kind, group in (by_kind | {ALL: everything}).items()]


def _summary(kind: str, group: list[Forced]) -> CopyCost:
    tokens = sum(len(forced.plain) for forced in group)
    left = [int((forced.plain_stays & ~forced.penalised_stays).sum()) for forced in group]
    back = sum(int((~forced.plain_stays & forced.penalised_stays).sum()) for forced in group)
    return CopyCost(
        kind=kind,
        tasks=len(group),
        tokens=tokens,
        bits=sum(float(forced.plain.sum()) for forced in group) / tokens,
        cost=estimate([float((forced.penalised - forced.plain).mean()) for forced in group]),
        stays=sum(int(forced.plain_stays.sum()) for forced in group) / tokens,
        leaves=sum(left) / tokens,
        returns=back / tokens,
        spoilt=sum(map(bool, left)) / len(group),
    )
