"""Measure what a gate adds to the penalty: `python -m benchmarks.gate` (about a minute).

On a CPU: Numba, one row. With `--device cuda`: Triton, 64 rows, as in an engine that prepares the op once; device time under
a CUDA graph. Each call sees one token more than the call before it. Settings with and without a gate take turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks import cuda_clock
from benchmarks.workload import MAIN_VOCAB, RESULTS, histories, machine, write_json
from lz_penalty import LZPenaltyConfig, pack_configs, prepare_lz_penalty

TEXTS = ("random", "zipf", "half", "loop", "loop with mistakes")
LENGTHS = (700, 4_200)
CALLS, ROUNDS = 90, 15
GATED = {
    "guarded": LZPenaltyConfig.guarded(include_prompt=True),  # all tokens count here
    "guarded, no escalation": LZPenaltyConfig.guarded(escalation=0.0, include_prompt=True),
    "paper with a gate": LZPenaltyConfig(gate_low=0.35, gate_high=0.5),
}
LIMIT = 1.3  # of the time without a gate
NO_GATE = {"gate_low": None, "gate_high": None}


def text(kind: str, batch: int, length: int) -> np.ndarray:
    """Return token ids `[batch, length]` of this kind."""
    rng = np.random.default_rng(1)
    if kind == "zipf":
        return np.minimum(rng.zipf(1.3, (batch, length)), MAIN_VOCAB - 1).astype(np.int64)
    ids = histories(kind.split()[0], batch, length, MAIN_VOCAB)
    mistake = rng.random(ids.shape) < (0.06 if kind == "loop with mistakes" else 0.0)
    return np.where(mistake, rng.integers(0, MAIN_VOCAB, ids.shape), ids)


def calls(config: LZPenaltyConfig, ids: np.ndarray, device: str) -> list[Callable[[], object]]:
    """Return calls of a prepared step, for contexts of growing length."""
    rows, length = ids.shape
    logits, tokens = torch.zeros((rows, MAIN_VOCAB), device=device), torch.from_numpy(ids).to(device, torch.int32)
    lengths = [torch.full((rows,), length - CALLS + 1 + i, dtype=torch.int32, device=device) for i in range(CALLS)]
    packed = pack_configs(config, None if device == "cpu" else device)
    backend = "numba" if device == "cpu" else "triton"
    step = prepare_lz_penalty(logits, tokens, lengths[0], config=packed, backend=backend)
    made = [lambda end=end: step(logits, tokens, end) for end in lengths]
    for call in made[:6]:
        call()
    return made


def host_us(made: list[Callable[[], object]]) -> float:
    """Return microseconds per call on the host."""
    begin = time.perf_counter()
    for call in made:
        call()
    return (time.perf_counter() - begin) * 1e6 / len(made)


def measure(name: str, kind: str, length: int, device: str) -> dict[str, Any]:
    """Return the medians with and without a gate, and the median of their ratios."""
    ids = text(kind, 1 if device == "cpu" else 64, length)
    gated = GATED[name]
    both = [calls(config, ids, device) for config in (gated, LZPenaltyConfig(**{**vars(gated), **NO_GATE}))]
    if device == "cpu":
        times = np.array([[host_us(made) for made in both] for _ in range(ROUNDS)])
    else:
        times = np.array([[np.median(cuda_clock.graph_times(made)) for made in both] for _ in range(3)])
    with_gate, without = np.median(times, axis=0)
    ratio = float(np.median(times[:, 0] / times[:, 1]))
    record = {"settings": name, "text": kind, "tokens": length}
    return record | {"us": round(with_gate, 2), "without_us": round(without, 2), "ratio": round(ratio, 2)}


def main() -> int:
    """Measure all settings and texts, print a table and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--texts", nargs="+", choices=TEXTS, default=TEXTS, help="default: all")
    parser.add_argument("--settings", nargs="+", choices=GATED, default=list(GATED), help="default: all")
    parser.add_argument("--out", type=Path, help="results file (default: results/gate_DEVICE.json)")
    given = parser.parse_args()
    title = "Numba, one row" if given.device == "cpu" else "Triton, 64 rows"
    table = Table("settings", "text", "tokens", "with gate, us", "without, us", "ratio", title=title)
    records = []
    for name in given.settings:
        for kind in given.texts:
            for length in LENGTHS:
                records.append(measure(name, kind, length, given.device))
                table.add_row(*map(str, records[-1].values()))
    Console().print(table)
    about = machine() if given.device == "cpu" else machine(gpu=torch.cuda.get_device_name())
    out = given.out or RESULTS / f"gate_{given.device}.json"
    write_json(out, {"machine": about, "vocab": MAIN_VOCAB, "limit": LIMIT, "records": records})
    worst = max(records, key=lambda record: record["ratio"])
    print(
        f"{worst['settings']} takes at most {worst['ratio']} times as long as without its gate (wanted: {LIMIT}). "
        f"Written to {out}."
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
