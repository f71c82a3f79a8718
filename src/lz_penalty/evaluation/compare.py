"""Measure penalties: how often greedy text loops under each, and what each costs in text that should not change."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lz_penalty import bundled_model
from lz_penalty._files import read_text
from lz_penalty.bundled_model import problems
from lz_penalty.errors import LZPenaltyError, show
from lz_penalty.evaluation.bits import CopyCost, Estimate, copy_cost, human_text_cost
from lz_penalty.evaluation.copying import KINDS, copy_tasks
from lz_penalty.evaluation.generation import continue_greedily
from lz_penalty.evaluation.loading import Loaded
from lz_penalty.evaluation.measures import is_solved, mean, of_tokens
from lz_penalty.evaluation.penalties import Penalty
from lz_penalty.evaluation.results_file import write_results

__all__ = ["Harm", "Plan", "Result", "compare", "measure_harm", "read_results"]

MAX_FILE = 64 * 2**20  # bytes of a file of results
ANSWER_TOKENS = 400
Tick = Callable[[int], None]  # called with the number of steps done


@dataclass(frozen=True)
class Plan:
    """The amount of everything that is measured on a penalty."""

    model: str
    prompts: int = 0  # open-ended prompts
    new_tokens: int = 1024  # after each prompt
    passages: int = 16  # of human text
    problems: int = 0  # reasoning problems
    tasks: int = 0  # copying tasks of each kind
    seed: int = 1  # of problems and tasks
    dtype: str = "auto"  # of the weights

    @property
    def steps(self) -> int:
        """How many steps one penalty takes, for a progress bar."""
        return self.prompts + self.passages + self.problems + self.tasks * len(KINDS)


@dataclass(frozen=True)
class Harm:
    """The cost of one penalty in bits; the last of `copies` is all kinds together."""

    penalty: str
    human_text: Estimate
    copies: list[CopyCost]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, with `None` for infinity."""
        return _finite(asdict(self))


@dataclass(frozen=True)
class Result:
    """The measures of one penalty.

    Args:
        penalty: its name.
        degenerate, loops, distinct_4: of the open-ended continuations, as `measures.of_tokens` defines them.
        human_text_cost: how many bits per token worse the penalised model predicts human text; `None` for infinity, if
            the penalty forbids a token of the text.
        accuracy: share of reasoning problems solved.
        tokens_per_second: of the open-ended continuations.
        human_text_interval: the 95 % confidence interval of `human_text_cost` over passages.
    """

    penalty: str
    degenerate: float
    loops: float
    distinct_4: float
    human_text_cost: float | None
    accuracy: float | None
    tokens_per_second: float
    human_text_interval: tuple[float, float] | None = None


def compare(
    loaded: Loaded,
    penalties: Sequence[Penalty],
    plan: Plan,
    *,
    out: Path | None = None,
    tick: Callable[[str, int], None] = lambda name, count: None,
) -> list[Result]:
    """Measure every penalty. Results that the same plan has already written to `out` are not measured again."""
    done = {result.penalty: result for result in read_results(out, plan)} if out and out.exists() else {}
    for penalty in penalties:
        if penalty.name not in done:
            done[penalty.name] = _measure(loaded, penalty, plan, functools.partial(tick, penalty.name))
            if out:
                write_results(out, asdict(plan), [asdict(result) for result in done.values()])
        else:
            tick(penalty.name, plan.steps)
    return [done[penalty.name] for penalty in penalties]


def measure_harm(loaded: Loaded, penalty: Penalty, plan: Plan, tick: Tick = lambda count: None) -> Harm:
    """Measure what a penalty costs on human text and, if the plan has tasks, on copies."""
    text = human_text_cost(loaded, _take(bundled_model.passages(), plan.passages, "passages"), penalty, tick=tick)
    copies = copy_cost(loaded, copy_tasks(plan.tasks, plan.seed), penalty, tick=tick) if plan.tasks else []
    return Harm(penalty.name, text, copies)


def _measure(loaded: Loaded, penalty: Penalty, plan: Plan, tick: Tick) -> Result:
    batch = 32 if loaded.model.device.type == "cpu" else 256  # a CPU gains nothing from larger batches
    texts = _take(bundled_model.prompts(), plan.prompts, "prompts")
    prompts = [loaded.tokenizer(text).input_ids for text in texts]
    prose = continue_greedily(loaded, prompts, penalty, plan.new_tokens, may_end=False, batch=batch, tick=tick)
    cost = measure_harm(loaded, penalty, plan, tick).human_text
    finite = math.isfinite(cost.mean)
    return Result(
        penalty=penalty.name,
        **of_tokens(prose.tokens),
        human_text_cost=cost.mean if finite else None,
        accuracy=_accuracy(loaded, penalty, plan, batch, tick) if plan.problems else None,
        tokens_per_second=prose.tokens_per_second,
        human_text_interval=(cost.low, cost.high) if finite else None,
    )


def _accuracy(loaded: Loaded, penalty: Penalty, plan: Plan, batch: int, tick: Tick) -> float:
    asked = list(problems.generate(seed=plan.seed, n=plan.problems, split="heldout"))
    questions = [loaded.tokenizer(problems.prompt(problem)).input_ids for problem in asked]
    answers = continue_greedily(loaded, questions, penalty, ANSWER_TOKENS, may_end=True, batch=batch, tick=tick)
    texts = [loaded.tokenizer.decode(tokens) for tokens in answers.tokens]
    return mean(is_solved(text, problem.answer) for text, problem in zip(texts, asked, strict=True))


def read_results(path: Path, plan: Plan | None = None) -> list[Result]:
    """Return the results in a file; raise an error if another plan made them, so that results are never mixed."""
    try:
        data = json.loads(read_text(path, MAX_FILE))
        results = [Result(**result) for result in data["results"]]
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise LZPenaltyError(
            f"{path}: not a file of results ({error}); move it away or choose another --out."
        ) from None
    if plan is not None and data["plan"] != asdict(plan):
        raise LZPenaltyError(f"{path} was made with other settings ({show(data['plan'], 300)}); choose another --out.")
    return results


def _take(items: list[str], count: int, what: str) -> list[str]:
    if count > len(items):
        raise LZPenaltyError(f"{what} = {count}: there are {len(items)}.")
    return items[:count]


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
