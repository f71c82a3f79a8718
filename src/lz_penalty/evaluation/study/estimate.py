"""Estimate how long a sweep takes and what it costs, from its logs so far or else from the speed that the sweep declares."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from lz_penalty.evaluation.study.running import Prepared, log_folder
from lz_penalty.evaluation.study.sweep import Cell, Sweep

__all__ = ["Remaining", "remaining"]

CHARACTERS_PER_TOKEN = 4  # roughly


@dataclass(frozen=True)
class Remaining:
    """The remaining part of one model's sweep.

    Args:
        model: its name.
        cells, done: how many cells there are, and how many of them are recorded.
        samples: outputs still to write.
        tokens: tokens still to write; if nothing was measured yet, every output is counted with its largest length.
        seconds: at the measured speed, else at the declared one; `None` if neither is known.
        cost: in the unit of the prices; `None` without prices.
        measured: whether tokens and speed come from this study's own logs.
    """

    model: str
    cells: int
    done: int
    samples: int
    tokens: float
    seconds: float | None
    cost: float | None
    measured: bool


def remaining(sweep: Sweep, prepared: Prepared, out: Path) -> list[Remaining]:
    """Return the remaining part of each model."""
    known = _Measured(log_folder(out))
    made = []
    for model in sweep.models:
        mine = [cell for cell in prepared.cells if cell.model == model]
        left = [cell for cell in mine if (model.name, cell.name) not in known.done]
        samples = tokens = prompts = 0.0
        for cell in left:
            questions = prepared.questions[cell.task].dataset
            count = len(questions) * cell.runs(sweep.grid)
            samples += count
            tokens += count * known.length(cell, cell.max_tokens(sweep.grid))
            characters = sum(len(str(question.input)) for question in questions)
            prompts += characters / CHARACTERS_PER_TOKEN * cell.runs(sweep.grid)
        speed = known.speed(model.name) or model.tokens_per_second
        cost = None
        if len(model.price) == 2:
            cost = (prompts * model.price[0] + tokens * model.price[1]) / 1e6
        if sweep.judge and len(sweep.judge.price) == 2:  # a judge reads every output and writes about 40 tokens
            cost = (cost or 0.0) + (tokens * sweep.judge.price[0] + samples * 40 * sweep.judge.price[1]) / 1e6
        made.append(
            Remaining(
                model=model.name,
                cells=len(mine),
                done=len(mine) - len(left),
                samples=int(samples),
                tokens=tokens,
                seconds=tokens / speed if speed else None,
                cost=cost,
                measured=known.speed(model.name) is not None,
            )
        )
    return made


class _Measured:
    """Lengths and speed in the logs of a study."""

    def __init__(self, logs: Path) -> None:
        self.done: set[tuple[str, str]] = set()
        self._tokens: dict[str, float] = defaultdict(float)
        self._lengths: dict[tuple[str, str], list[float]] = defaultdict(list)
        self._spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
        if logs.is_dir():
            self._read(logs)

    def _read(self, logs: Path) -> None:
        from inspect_ai.log import list_eval_logs, read_eval_log

        for info in list_eval_logs(str(logs)):
            log = read_eval_log(info, header_only=True)
            metadata = log.eval.metadata or {}
            if log.status != "success" or "penalty" not in metadata or log.results is None:
                continue
            model, written = metadata["model"], sum(use.output_tokens for use in log.stats.model_usage.values())
            self.done.add((model, log.eval.task))
            self._tokens[model] += written
            self._lengths[model, metadata["task"]].append(written / max(1, log.results.total_samples))
            self._spans[model].append((_seconds(log.stats.started_at), _seconds(log.stats.completed_at)))

    def length(self, cell: Cell, otherwise: float) -> float:
        """Return the mean length of this task's outputs in tokens."""
        lengths = self._lengths[cell.model.name, cell.task.name]
        return sum(lengths) / len(lengths) if lengths else otherwise

    def speed(self, model: str) -> float | None:
        """Return the tokens per second, over the time in which at least one cell was running."""
        busy, end = 0.0, float("-inf")
        for start, stop in sorted(self._spans[model]):
            busy += max(0.0, stop - max(start, end))
            end = max(end, stop)
        return self._tokens[model] / busy if busy else None


def _seconds(when: str | None) -> float:
    return datetime.fromisoformat(str(when)).timestamp()
