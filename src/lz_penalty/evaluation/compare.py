"""Penalties side by side: how often greedy text loops, and what each penalty costs in text that should not change."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lz_penalty import bundled_model
from lz_penalty._files import read_text
from lz_penalty.bundled_model import problems
from lz_penalty.detection import distinct, is_degenerate, is_loop
from lz_penalty.errors import LZPenaltyError, show
from lz_penalty.evaluation.bits import human_text_cost
from lz_penalty.evaluation.generation import Loaded, continue_greedily
from lz_penalty.evaluation.penalties import Penalty
from lz_penalty.evaluation.results_file import write_results

__all__ = ["Plan", "Result", "compare", "read_results"]

MAX_FILE = 64 * 2**20  # bytes of a file of results


@dataclass(frozen=True)
class Plan:
    """What is measured, the same for every penalty."""

    model: str
    prompts: int = 128
    new_tokens: int = 1024
    passages: int = 16
    problems: int = 200
    seed: int = 1
    dtype: str = "auto"


@dataclass(frozen=True)
class Result:
    """What one penalty did.

    Args:
        penalty: its name.
        degenerate: share of continuations in which some unit stands 20 times or more in a row (the paper's threshold).
        loops: share with 5 copies in a row and 60 tokens.
        distinct_4: share of different 4-grams, mean over continuations.
        human_text_cost: how many bits per token worse the penalised model predicts human text; None where the penalty
            rules out a token that stands there, which no number of bits pays for.
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
    tick: Callable[[str, int], None] = lambda what, count: None,
) -> list[Result]:
    """Measure every penalty; results that stand in `out` already, made by the same plan, are not made again."""
    done = {result.penalty: result for result in read_results(out, plan)} if out and out.exists() else {}
    for penalty in penalties:
        if penalty.name not in done:
            done[penalty.name] = measure(loaded, penalty, plan, tick)
            if out:
                write_results(out, asdict(plan), [asdict(result) for result in done.values()])
        else:
            tick(penalty.name, steps(plan))
    return [done[penalty.name] for penalty in penalties]


def steps(plan: Plan) -> int:
    """How many ticks one penalty takes."""
    return plan.prompts + plan.passages + plan.problems


def measure(loaded: Loaded, penalty: Penalty, plan: Plan, tick: Callable[[str, int], None]) -> Result:
    """One penalty's row of the table."""
    tokenizer = loaded.tokenizer
    batch = 32 if loaded.model.device.type == "cpu" else 256  # a CPU gains nothing beyond

    def count(n: int) -> None:
        tick(penalty.name, n)

    prompts = [tokenizer(text).input_ids for text in _take(bundled_model.prompts(), plan.prompts, "prompts")]
    prose = continue_greedily(loaded, prompts, penalty, plan.new_tokens, may_end=False, batch=batch, tick=count)
    cost = human_text_cost(loaded, _take(bundled_model.passages(), plan.passages, "passages"), penalty, tick=count)
    accuracy = None
    if plan.problems:
        asked = list(problems.generate(seed=plan.seed, n=plan.problems, split="heldout"))
        questions = [tokenizer(problems.prompt(problem)).input_ids for problem in asked]
        answers = continue_greedily(loaded, questions, penalty, 400, may_end=True, batch=batch, tick=count)
        texts = [tokenizer.decode(tokens) for tokens in answers.tokens]
        right = [problems.extract_answer(text) == problem.answer for text, problem in zip(texts, asked, strict=True)]
        accuracy = sum(right) / len(right)
    return Result(
        penalty=penalty.name,
        degenerate=_mean([is_degenerate(tokens) for tokens in prose.tokens]),
        loops=_mean([is_loop(tokens) for tokens in prose.tokens]),
        distinct_4=_mean([distinct(tokens, 4) for tokens in prose.tokens]),
        human_text_cost=cost.mean if math.isfinite(cost.mean) else None,
        accuracy=accuracy,
        tokens_per_second=prose.tokens_per_second,
        human_text_interval=(cost.low, cost.high) if math.isfinite(cost.mean) else None,
    )


# ---------------------------------------------------------------- results on disk


def read_results(path: Path, plan: Plan | None = None) -> list[Result]:
    """The results in a file; an error if it was made by another plan, so that nothing is mixed up."""
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


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
