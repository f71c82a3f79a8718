"""What the benchmarks of engines share: model shapes with dummy weights, rounds of contenders, and their summary."""

from __future__ import annotations

import itertools
import json
import random
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

CONTEXT = 1024
TURN, SETTLE = 16, 3  # steps with the penalty, then as many without; the first ones of a stretch do not count
LONG = 256  # new tokens of a run in turns: a few stretches


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
    run: Callable[[str, int], dict[str, Any]],
    contenders: list[str],
    rounds: int,
    occasional: dict[str, int],
    turning: tuple[str, ...],
) -> list[dict[str, Any]]:
    """Rounds in which every contender runs once, in random order.

    Args:
        run: of a contender, and how many steps the penalty is on, and then off, in turn (0: always on).
        contenders: their names.
        rounds: how many.
        occasional: contenders that run in so many of the rounds only.
        turning: contenders that also run in turns.
    """
    for contender in contenders:  # caches, compilations
        run(contender, 0)
    runs = []
    for number in range(rounds):
        order = [one for one in contenders if number < occasional.get(one, rounds)]
        random.Random(number).shuffle(order)
        for contender in order:
            runs.append({"round": number} | run(contender, 0))
            if contender in turning:
                runs.append({"round": number} | run(contender, TURN))
    return runs


def costs_of_stretches(steps: list[float], on: list[bool]) -> list[float]:
    """For each whole stretch of steps with the penalty: how much longer its steps take than those on both sides."""
    stretches = []
    for is_on, group in itertools.groupby(zip(on, steps, strict=True), key=lambda pair: pair[0]):
        times = [time for _, time in group]
        stretches.append((is_on, statistics.median(times[SETTLE:]) if len(times) == TURN else None))
    return [
        2 * mine / (before + after) - 1
        for (_, before), (is_on, mine), (_, after) in zip(stretches, stretches[1:], stretches[2:], strict=False)
        if is_on and before and mine and after
    ]


# ---------------------------------------------------------------- results


def summary(
    runs: list[dict[str, Any]], cell: tuple[str, ...], baselines: tuple[str, ...], medians: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Per cell and contender: step time, the cost against the baseline of the same round, and the cost in turns.

    Args:
        runs: `contender`, `round`, `step_ms` or `turn_costs`, and the keys below.
        cell: the keys that tell measurements apart.
        baselines: the first of these contenders that a cell has.
        medians: further keys to take the median of.
    """
    rows = []
    for key in dict.fromkeys((*(run[name] for name in cell), run["contender"]) for run in runs):
        same = [run for run in runs if tuple(run[name] for name in cell) == key[:-1]]
        mine = [run for run in same if run["contender"] == key[-1] and "step_ms" in run]
        turns = [cost for run in same if run["contender"] == key[-1] for cost in run.get("turn_costs", [])]
        baseline = next(one for one in baselines if any(run["contender"] == one for run in same))
        base = {run["round"]: run["step_ms"] for run in same if run["contender"] == baseline and "step_ms" in run}
        rows.append(
            dict(zip((*cell, "contender"), key))
            | {"baseline": baseline, "rounds": len(mine)}
            | {"step_ms": statistics.median(run["step_ms"] for run in mine)}
            | _mean_of("cost", [run["step_ms"] / base[run["round"]] - 1 for run in mine])
            | {"turns": len(turns)}
            | _mean_of("turn_cost", turns)
            | {name: _median_of(mine, name) for name in medians}
        )
    return rows


def _mean_of(name: str, values: list[float], resamples: int = 2000) -> dict[str, float | None]:
    """Mean, and its 95 % bootstrap interval."""
    stem = name.removesuffix("_cost")
    if not values:
        return {name: None, f"{stem}_low": None, f"{stem}_high": None}
    rng = random.Random(0)
    means = sorted(statistics.fmean(rng.choices(values, k=len(values))) for _ in range(resamples))
    low, high = means[int(0.025 * resamples)], means[int(0.975 * resamples)]
    return {name: statistics.mean(values), f"{stem}_low": low, f"{stem}_high": high}


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
