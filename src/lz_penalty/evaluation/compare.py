"""Penalties side by side: how often greedy text loops, and what each penalty costs in text that should not change."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import lz_penalty
from lz_penalty import bundled_model
from lz_penalty.bundled_model import problems
from lz_penalty.detection import distinct, is_degenerate, is_loop
from lz_penalty.errors import LZPenaltyError
from lz_penalty.evaluation.generation import Loaded, continue_greedily
from lz_penalty.evaluation.penalties import Penalty
from lz_penalty.ops import apply_lz_penalty_

__all__ = ["Plan", "Result", "compare", "human_text_cost", "read_results"]


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
    """

    penalty: str
    degenerate: float
    loops: float
    distinct_4: float
    human_text_cost: float | None
    accuracy: float | None
    tokens_per_second: float


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
                _write(out, plan, list(done.values()))
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
    costs = []
    for text in _take(bundled_model.passages(), plan.passages, "passages"):
        costs.append(human_text_cost(loaded, text, penalty))
        count(1)
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
        human_text_cost=_mean(costs) if math.isfinite(_mean(costs)) else None,
        accuracy=accuracy,
        tokens_per_second=prose.tokens_per_second,
    )


@torch.no_grad()
def human_text_cost(loaded: Loaded, text: str, penalty: Penalty, limit: int = 1024) -> float:
    """How many bits per token worse the penalised model predicts this text."""
    model, tokenizer = loaded
    ids = torch.tensor([tokenizer(text).input_ids[:limit]], device=model.device)
    plain = model(ids).logits[0, :-1].float()
    penalised = _penalised(plain, ids, penalty.make(tokenizer, 0))
    following = ids[0, 1:, None]
    nats = plain.log_softmax(-1).gather(1, following) - penalised.log_softmax(-1).gather(1, following)
    return float(nats.mean()) / math.log(2)


def _penalised(plain: torch.Tensor, ids: torch.Tensor, processors: list[Any]) -> torch.Tensor:
    """The logits after each prefix of the text, penalised by what that prefix holds."""
    count = plain.shape[0]
    for processor in processors:
        if hasattr(processor, "config"):  # the op takes all prefixes of one history at once
            ends = torch.arange(1, count + 1, device=ids.device)
            rows = torch.zeros(count, dtype=torch.int64, device=ids.device)
            plain = plain.clone()
            apply_lz_penalty_(plain, ids, ends, config=processor.config, row_to_slot=rows, starts=rows)
        else:
            plain = torch.cat([processor(ids[:, : i + 1], plain[i : i + 1]) for i in range(count)])
    return plain


# ---------------------------------------------------------------- results on disk


def read_results(path: Path, plan: Plan | None = None) -> list[Result]:
    """The results in a file; an error if it was made by another plan, so that nothing is mixed up."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        results = [Result(**result) for result in data["results"]]
    except (ValueError, TypeError, KeyError) as error:
        raise LZPenaltyError(
            f"{path}: not a file of results ({error}); move it away or choose another --out."
        ) from None
    if plan is not None and data["plan"] != asdict(plan):
        raise LZPenaltyError(f"{path} was made with other settings ({data['plan']}); choose another --out.")
    return results


def _write(path: Path, plan: Plan, results: list[Result]) -> None:
    versions = {name: metadata.version(name) for name in ("torch", "transformers", "numpy")}
    machine = {"cpu": _cpu(), "python": platform.python_version(), **versions}
    if torch.cuda.is_available():
        machine["gpu"] = torch.cuda.get_device_name()
    data = {
        "lz_penalty": lz_penalty.__version__,
        "machine": machine,
        "plan": asdict(plan),
        "results": [asdict(result) for result in results],
    }
    partial = path.with_suffix(path.suffix + ".partial")
    partial.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    partial.replace(path)


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _take(items: list[str], count: int, what: str) -> list[str]:
    if count > len(items):
        raise LZPenaltyError(f"{what} = {count}: there are {len(items)}.")
    return items[:count]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
