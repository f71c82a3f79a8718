"""What each penalty of a sweep costs on human text, recorded beside the logs."""

from __future__ import annotations

from pathlib import Path

from lz_penalty.errors import LZPenaltyError
from lz_penalty.evaluation.study.results import COSTS, Cost, read_costs, write_costs
from lz_penalty.evaluation.study.sweep import Sweep

__all__ = ["measure_costs"]

LIMIT = 512  # tokens of a passage


def measure_costs(sweep: Sweep, out: Path) -> list[str]:
    """Measure what is not in the study's `costs.csv` yet, and return what could not be.

    Only local models can be asked for every token's probability.
    """
    path, problems = out / COSTS, []
    done = {(cost.model, cost.penalty): cost for cost in read_costs(path)}
    for entry in sweep.models:
        left = [name for name in sweep.grid.penalties if (entry.name, name) not in done]
        if entry.kind != "transformers" or not entry.passages or not left:
            continue
        from lz_penalty import bundled_model
        from lz_penalty.evaluation.bits import human_text_cost
        from lz_penalty.evaluation.generation import load
        from lz_penalty.evaluation.penalties import penalty

        try:
            loaded = load(entry.model, entry.device, entry.dtype)
        except LZPenaltyError as error:
            problems.append(f"human-text cost, model {entry.name!r}: {error}")
            continue
        texts = bundled_model.passages()[: entry.passages]
        for name in left:
            bits = human_text_cost(loaded, texts, penalty(name), limit=LIMIT)
            done[entry.name, name] = Cost(entry.name, name, bits.mean, bits.low, bits.high)
            write_costs(path, done.values())
    return problems
