"""Parts that the benchmarks of vLLM and SGLang share: model shapes with dummy weights, rounds, and their summary."""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.workload import RESULTS

CONTEXT = 1024
ALONE = "32B"  # too large for a second engine on the same GPU
WITHOUT = "steps without it in the same run"
FILE = "LZ_PENALTY_BENCHMARK_FILE"  # environment variable with the path of `notes`
STEPS = 1_000_000
PAPER, GUARDED, REPETITION, FREQUENCY = "LZ paper", "LZ guarded", "repetition 1.2", "frequency 0.3"


def contender_settings(none: str, idle: str, field: str) -> dict[str, dict[str, Any]]:
    """Return the sampling parameters of every contender.

    Args:
        none: name of the engine without our plug-in.
        idle: name of the engine with our plug-in when no request asks for the penalty.
        field: the sampling parameter that carries the penalty's settings.
    """
    return {
        none: {},
        idle: {},
        PAPER: {field: {"lz_preset": "paper"}},
        GUARDED: {field: {"lz_preset": "guarded"}},
        REPETITION: {"repetition_penalty": 1.2},
        FREQUENCY: {"frequency_penalty": 0.3},
    }


@dataclass(frozen=True)
class Shape:
    """A Qwen2.5 architecture; the numbers are from its published config.json."""

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
    """Write a config.json of this shape, which is enough for dummy weights; return the folder's path."""
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
    """Return prompts of `CONTEXT` random tokens."""
    rng = random.Random(0)
    return [[rng.randrange(2, SHAPES[name].vocab_size) for _ in range(CONTEXT)] for _ in range(batch)]


def parser(about: str | None, engine: str) -> argparse.ArgumentParser:
    """Return a parser with the options that both benchmarks take."""
    made = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--shapes", nargs="+", default=["7B"], choices=list(SHAPES))
    made.add_argument("--batches", nargs="+", type=int, default=[64, 32, 8])
    made.add_argument("--new-tokens", type=int, default=64)
    made.add_argument("--rounds", type=int, default=8, help="runs of each contender")
    made.add_argument("--seconds", type=float, default=600, help="start no new round of a batch after this time")
    made.add_argument("--others", type=int, default=3, help=f"runs of {engine}'s own penalties")
    made.add_argument("--out", type=Path, default=RESULTS / f"{engine.lower()}.json")
    return made


def run_rounds(
    run: Callable[[str], dict[str, Any]], contenders: list[str], given: argparse.Namespace, others: tuple[str, ...]
) -> Iterator[dict[str, Any]]:
    """Run rounds: every contender once per round, in random order; `others`, whose cost is large, only in a few rounds."""
    for contender in contenders:  # fill caches, compile
        run(contender)
    begin = time.monotonic()
    for number in range(given.rounds):
        if time.monotonic() - begin > given.seconds:
            return
        order = [one for one in contenders if number < given.others or one not in others]
        random.Random(number).shuffle(order)
        for contender in order:
            yield {"round": number, "contender": contender} | run(contender)


def notes(path: Path, mode: Any) -> np.ndarray:
    """Map a file that this process shares with an engine's process.

    The first row contains the number of steps and settings of the benchmark. Each further row is one step; the engine's
    module (`vllm_timed`, `sglang_watch`) says what it contains.
    """
    return np.memmap(path, np.int64, mode, shape=(STEPS, 4))


# ---------------------------------------------------------------- results


def summary(
    runs: list[dict[str, Any]], cell: tuple[str, ...], baselines: tuple[str, ...], medians: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Return step time and cost for each cell and contender. The baseline is from the same round, or from the same run.

    Args:
        runs: each with `contender`, `round`, `step_ms`, the keys below, and `without_ms` if it has its own baseline.
        cell: the keys that identify a measurement.
        baselines: contenders; the first that a cell has is its baseline.
        medians: further keys to take the median of.
    """
    rows = []
    for key in dict.fromkeys((*(run[name] for name in cell), run["contender"]) for run in runs):
        same = [run for run in runs if tuple(run[name] for name in cell) == key[:-1]]
        mine = [run for run in same if run["contender"] == key[-1]]
        baseline = next((one for one in baselines if any(run["contender"] == one for run in same)), WITHOUT)
        base = {run["round"]: run["step_ms"] for run in same if run["contender"] == baseline}
        rows.append(
            dict(zip((*cell, "contender"), key))
            | {"baseline": baseline, "rounds": len(mine)}
            | {"step_ms": statistics.median(run["step_ms"] for run in mine)}
            | _mean("cost", [run["step_ms"] / (run.get("without_ms") or base[run["round"]]) - 1 for run in mine])
            | {name: _median_of(mine, name) for name in medians}
        )
    return rows


def _mean(name: str, values: list[float], resamples: int = 2000) -> dict[str, float]:
    """Return the mean and its 95 % bootstrap interval."""
    rng = random.Random(0)
    means = sorted(statistics.fmean(rng.choices(values, k=len(values))) for _ in range(resamples))
    low, high = means[int(0.025 * resamples)], means[int(0.975 * resamples)]
    return {name: statistics.mean(values), f"{name}_low": low, f"{name}_high": high}


def _median_of(runs: list[dict[str, Any]], key: str) -> float | None:
    values = [run[key] for run in runs if run.get(key) is not None]
    return statistics.median(values) if values else None


def earlier(path: Path, about: dict[str, Any]) -> dict[str, Any]:
    """Return the results in the file, to add runs to. Exit if they are from another machine or version."""
    if not path.exists():
        return {"machine": about, "runs": []}
    data = json.loads(path.read_text(encoding="utf-8"))
    if data["machine"] != about:
        sys.exit(
            f"{path} is from another machine or version: it has {data['machine']}, here is {about}. Use another --out."
        )
    return data
