"""What the benchmarks of engines share: model shapes with dummy weights, rounds of contenders, and their summary."""

from __future__ import annotations

import json
import random
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

CONTEXT = 1024


@dataclass(frozen=True)
class Shape:
    """A Qwen2.5 architecture; figures from its published config.json."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    tie_word_embeddings: bool = False


SHAPES = {
    "tiny": Shape(256, 512, 2, 2, 1, 4096),  # to try the scripts
    "1.5B": Shape(1536, 8960, 28, 12, 2, 151_936, tie_word_embeddings=True),
    "7B": Shape(3584, 18_944, 28, 28, 4, 152_064),
    "32B": Shape(5120, 27_648, 64, 40, 8, 152_064),
}


def write_model(name: str, folder: Path) -> str:
    """Write a config.json of this shape, all that an engine needs for dummy weights; the folder's path."""
    config = asdict(SHAPES[name]) | {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
        "max_position_embeddings": 32_768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "torch_dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(folder)


def random_prompts(name: str, batch: int) -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(2, SHAPES[name].vocab_size) for _ in range(CONTEXT)] for _ in range(batch)]


def run_rounds(
    run: Callable[[str], dict[str, Any]], contenders: list[str], rounds: int, occasional: dict[str, int]
) -> list[dict[str, Any]]:
    """Rounds in which every contender runs once, in random order; those in `occasional` in so many of them only."""
    for contender in contenders:  # caches, compilations
        run(contender)
    runs = []
    for number in range(rounds):
        order = [one for one in contenders if number < occasional.get(one, rounds)]
        random.Random(number).shuffle(order)
        runs += [{"round": number} | run(contender) for contender in order]
    return runs


# ---------------------------------------------------------------- results


def summary(
    runs: list[dict[str, Any]], cell: tuple[str, ...], baselines: tuple[str, ...], medians: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Per cell and contender: step time, and the cost against the baseline of the same round.

    Args:
        runs: `contender`, `round`, `step_ms`, and the keys below.
        cell: the keys that tell measurements apart.
        baselines: the first of these contenders that a cell has.
        medians: further keys to take the median of.
    """
    rows = []
    for key in dict.fromkeys((*(run[name] for name in cell), run["contender"]) for run in runs):
        same = [run for run in runs if tuple(run[name] for name in cell) == key[:-1]]
        mine = [run for run in same if run["contender"] == key[-1]]
        baseline = next(one for one in baselines if any(run["contender"] == one for run in same))
        base = {run["round"]: run["step_ms"] for run in same if run["contender"] == baseline}
        costs = [run["step_ms"] / base[run["round"]] - 1 for run in mine]
        low, high = interval(costs)
        rows.append(
            dict(zip((*cell, "contender"), key))
            | {"baseline": baseline, "rounds": len(mine)}
            | {"step_ms": statistics.median(run["step_ms"] for run in mine)}
            | {"cost": statistics.median(costs), "cost_low": low, "cost_high": high}
            | {name: _median_of(mine, name) for name in medians}
        )
    return rows


def interval(values: list[float], resamples: int = 2000) -> tuple[float, float]:
    """95 % bootstrap interval of the median."""
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(resamples))
    return medians[int(0.025 * resamples)], medians[int(0.975 * resamples)]


def _median_of(runs: list[dict[str, Any]], key: str) -> float | None:
    values = [run[key] for run in runs if run.get(key) is not None]
    return statistics.median(values) if values else None


def earlier(path: Path, about: dict[str, Any]) -> dict[str, Any]:
    """The results in the file, to be added to; from the same machine and versions, or the process ends."""
    if not path.exists():
        return {"machine": about, "runs": []}
    data = json.loads(path.read_text(encoding="utf-8"))
    if data["machine"] != about:
        sys.exit(f"{path} is from another machine or version: {data['machine']} and {about}; use another --out.")
    return data
