"""One penalty's harm, without a benchmark: the cost of human text and the cost of copies."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from lz_penalty import bundled_model
from lz_penalty.evaluation.bits import Estimate, human_text_cost
from lz_penalty.evaluation.copy_cost import CopyCost, copy_cost
from lz_penalty.evaluation.copying import KINDS, copy_tasks
from lz_penalty.evaluation.generation import Loaded
from lz_penalty.evaluation.penalties import Penalty

__all__ = ["Harm", "Plan", "measure", "steps"]


@dataclass(frozen=True)
class Plan:
    """What is measured: on how many passages of human text and how many copying tasks of each kind."""

    model: str
    passages: int = 64
    tasks: int = 4
    seed: int = 1
    dtype: str = "auto"


@dataclass(frozen=True)
class Harm:
    """What one penalty costs; the last of `copies` is all kinds together."""

    penalty: str
    human_text: Estimate
    copies: list[CopyCost]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, which knows no infinity: `None` stands for it."""
        return _finite(asdict(self))


def steps(plan: Plan) -> int:
    """How many ticks one penalty takes."""
    return plan.passages + plan.tasks * len(KINDS)


def measure(loaded: Loaded, penalty: Penalty, plan: Plan, *, tick: Callable[[int], None] = lambda count: None) -> Harm:
    """Measure one penalty."""
    text = human_text_cost(loaded, bundled_model.passages()[: plan.passages], penalty, tick=tick)
    return Harm(penalty.name, text, copy_cost(loaded, copy_tasks(plan.tasks, plan.seed), penalty, tick=tick))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
