"""Measure penalties: how often greedy text loops under each, and what each costs in text that should not change."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lz_penalty._files import read_text
from lz_penalty.bundled_model import problems
from lz_penalty.errors import LZPenaltyError, show
from lz_penalty.evaluation.bits import Tick
from lz_penalty.evaluation.copying import KINDS, copy_tasks
from lz_penalty.evaluation.generation import continue_greedily
from lz_penalty.evaluation.harm import Harm, measure_harm
from lz_penalty.evaluation.inputs import Prompt, Prompts, Texts
from lz_penalty.evaluation.loading import Loaded
from lz_penalty.evaluation.measures import is_solved, mean, of_tokens
from lz_penalty.evaluation.penalties import Penalty
from lz_penalty.evaluation.prompting import prompt_ids
from lz_penalty.evaluation.results_file import write_results
from lz_penalty.evaluation.texts import Text

__all__ = ["Material", "Plan", "Result", "compare", "plan_for", "read_results"]

MAX_FILE = 64 * 2**20  # bytes of a file of results
ANSWER_TOKENS = 400


@dataclass(frozen=True)
class Plan:
    """Everything that results depend on, except the penalty. Results of another plan are never mixed with these."""

    model: str
    prompts: int = 0  # how many
    prompts_from: str = "bundled"  # or a file and its sum
    new_tokens: int = 1024  # at most, after each prompt
    may_end: bool = False  # whether the model may end before `new_tokens`
    texts: int = 0  # of all kinds together
    texts_from: str = "bundled, all"  # or a file and its sum
    tasks: int = 0  # copying tasks of each kind
    problems: int = 0  # reasoning problems
    seed: int = 1  # of problems and tasks
    chat: bool = False  # whether prompts are put into the chat template
    dtype: str = "auto"  # of the weights

    @property
    def steps(self) -> int:
        """How many steps one penalty takes, for a progress bar."""
        return self.prompts + self.texts + self.problems + self.tasks * len(KINDS)


class Material(NamedTuple):
    """The prompts and texts that a plan counts."""

    prompts: Sequence[Prompt] = ()
    texts: Sequence[Text] = ()


def plan_for(model: str, prompts: Prompts | None, texts: Texts, **settings: Any) -> tuple[Plan, Material]:
    """Return the plan for these prompts and texts, and the prompts and texts themselves; `settings` are fields of `Plan`."""
    asked = prompts or Prompts([], "none")
    counts: dict[str, Any] = {"prompts": len(asked.items), "texts": len(texts.items)}
    plan = Plan(model, **counts, prompts_from=asked.source, texts_from=texts.source, **settings)
    return plan, Material(asked.items, texts.items)


@dataclass(frozen=True)
class Result:
    """The measures of one penalty.

    Args:
        penalty: its name.
        degenerate, loops, near_loops, distinct_4: of the answers, as `measures.of_tokens` defines them.
        capped: share of answers that the model did not end itself; `None` if it may not.
        tokens: mean length of an answer.
        accuracy: share of reasoning problems solved.
        harm: as `harm.Harm.to_dict` returns it.
    """

    penalty: str
    degenerate: float
    loops: float
    near_loops: float
    distinct_4: float
    capped: float | None
    tokens: float
    accuracy: float | None
    harm: dict[str, Any]


def compare(
    loaded: Loaded,
    penalties: Sequence[Penalty],
    plan: Plan,
    material: Material,
    *,
    out: Path | None = None,
    tick: Callable[[str, int], None] = lambda name, count: None,
) -> list[Result]:
    """Measure every penalty. Results that the same plan has already written to `out` are not measured again.

    `tick` is called with what is being measured, the harm of all penalties or one penalty, and the number of steps done.
    """
    done = {result.penalty: result for result in read_results(out, plan)} if out and out.exists() else {}
    prompts = [_asked(loaded, prompt, plan) for prompt in material.prompts]
    left = {penalty.name: penalty for penalty in penalties if penalty.name not in done}
    tick("", plan.steps * (len(penalties) - len(left)))
    harms = _harms(loaded, list(left.values()), plan, material, tick)
    for (name, penalty), harm in zip(left.items(), harms, strict=True):
        done[name] = _measure(loaded, penalty, plan, prompts, harm, functools.partial(tick, name))
        if out:
            write_results(out, asdict(plan), [asdict(result) for result in done.values()])
    return [done[penalty.name] for penalty in penalties]


def _harms(
    loaded: Loaded, penalties: list[Penalty], plan: Plan, material: Material, tick: Callable[[str, int], None]
) -> list[Harm]:
    if not penalties:
        return []
    tasks = copy_tasks(plan.tasks, plan.seed) if plan.tasks else []
    return measure_harm(
        loaded,
        penalties,
        material.texts,
        tasks,
        chat=plan.chat,
        tick=lambda count: tick("harm", count * len(penalties)),
    )


def _asked(loaded: Loaded, prompt: Prompt, plan: Plan) -> list[int]:
    """Return the prompt's ids; raise an error if the model cannot read them together with the answer."""
    ids = prompt_ids(loaded.tokenizer, prompt.text, plan.chat)
    most = getattr(loaded.model.config.get_text_config(), "max_position_embeddings", None)
    if most and len(ids) + plan.new_tokens > most:
        raise LZPenaltyError(
            f"prompt {show(prompt.id)} has {len(ids):,} tokens: with {plan.new_tokens:,} new ones these are more than the "
            f"{most:,} that the model reads. Shorten the prompt, or lower --tokens."
        )
    return ids


def _measure(loaded: Loaded, penalty: Penalty, plan: Plan, prompts: list[list[int]], harm: Harm, tick: Tick) -> Result:
    batch = 32 if loaded.model.device.type == "cpu" else 256  # a CPU gains nothing from larger batches
    answers = continue_greedily(loaded, prompts, penalty, plan.new_tokens, may_end=plan.may_end, batch=batch, tick=tick)
    return Result(
        penalty=penalty.name,
        **of_tokens(answers.tokens),
        capped=mean(not ended for ended in answers.ended) if plan.may_end else None,
        tokens=mean(map(len, answers.tokens)),
        accuracy=_accuracy(loaded, penalty, plan, batch, tick) if plan.problems else None,
        harm=harm.to_dict(),
    )


def _accuracy(loaded: Loaded, penalty: Penalty, plan: Plan, batch: int, tick: Tick) -> float:
    asked = list(problems.generate(seed=plan.seed, n=plan.problems, split="heldout"))
    questions = [prompt_ids(loaded.tokenizer, problems.prompt(problem), plan.chat) for problem in asked]
    answers = continue_greedily(loaded, questions, penalty, ANSWER_TOKENS, may_end=True, batch=batch, tick=tick)
    texts = [loaded.tokenizer.decode(tokens) for tokens in answers.tokens]
    return mean(is_solved(text, problem.answer) for text, problem in zip(texts, asked, strict=True))


def read_results(path: Path, plan: Plan | None = None) -> list[Result]:
    """Return the results in a file; raise an error if another plan made them, so that results are never mixed."""
    try:
        data = json.loads(read_text(path, MAX_FILE))
        made, results = data["plan"], [Result(**result) for result in data["results"]]
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise LZPenaltyError(
            f"{path}: not a file of results of this version ({error}); move it away or choose another --out."
        ) from None
    if plan is not None and made != asdict(plan):
        raise LZPenaltyError(f"{path} was made with other settings ({show(made, 300)}); choose another --out.")
    return results
