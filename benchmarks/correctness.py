"""Check a backend against the reference before its times are measured."""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.workload import GOLDEN, Report
from lz_penalty import LZPenaltyConfig, apply_lz_penalty_, pack_configs
from tests.support import cases

DTYPES = {"numba": ("float32", "float64"), "numpy": ("float32", "float64", "float16")}
ALL_DTYPES = ("float32", "float64", "float16", "bfloat16")


def check_backend(
    report: Report, backend: str, library: Any, device: str | None = None, *, count: int = 40, seconds: float = 25.0
) -> bool:
    """Compare a backend with the golden file and with generated cases; add the result to the report."""
    began = time.perf_counter()
    golden, wrong = golden_disagreement(backend, library, device)
    done = 0
    for case in generated(count, DTYPES.get(backend, ALL_DTYPES)):
        if wrong or time.perf_counter() - began > seconds:
            break
        wrong = cases.disagreement(case, library, backend, device)
        done += 1
    detail = wrong or f"equals the reference on {done} generated cases and {golden} golden contexts"
    return report.check(f"{backend} is right", not wrong and done > 0, detail)


def generated(count: int, dtypes: tuple[str, ...]) -> Iterator[cases.Case]:
    """Generate cases: first with the types that are timed, some with long windows; then with any types and layouts."""
    for seed in range(count):
        timed = seed < count // 2
        sizes = {"rows": 3, "length": 9000, "window": 8000} if seed % 8 == 3 else {"rows": 1 + seed % 5}
        case = cases.case(seed, dtypes=dtypes[:1] if timed else dtypes, **sizes)
        yield replace(case, token_dtype="int64", layout="plain") if timed else case


# ---------------------------------------------------------------- the golden file


def golden_disagreement(
    backend: str, library: Any, device: str | None = None, path: Path = GOLDEN
) -> tuple[int, str | None]:
    """Return the number of golden contexts, and the first difference of the backend. Each vocabulary is one call."""
    if not path.exists():
        return 0, None
    entries = json.loads(path.read_text())
    by_vocab = defaultdict(list)
    for entry in entries:
        by_vocab[entry["vocab_size"]].append(entry)
    for vocab, group in by_vocab.items():
        result = _apply_golden(group, vocab, backend, library, device)
        for entry, row in zip(group, result):
            want = np.zeros(vocab)
            for token, bits in entry["adjustments"].items():
                want[int(token)] = bits
            off = np.abs(row - want) > 2e-5 + 2e-6 * np.abs(want)
            if off.any():
                token = int(np.flatnonzero(off)[0])
                where = f"golden context {entries.index(entry)} ({entry['kind']}), token {token}"
                return len(entries), f"{where}: {row[token]} instead of {want[token]}"
    return len(entries), None


def _apply_golden(group: list[dict], vocab: int, backend: str, library: Any, device: str | None) -> np.ndarray:
    """Return the backend's adjustments `[rows, vocab]` in bits for contexts with one vocabulary."""
    names = {f.name for f in fields(LZPenaltyConfig)}
    configs = [
        LZPenaltyConfig(strength=1.0, **{name: value for name, value in entry.items() if name in names})
        for entry in group
    ]
    lengths = [len(entry["tokens"]) for entry in group]
    ids = np.full((len(group), max(lengths)), -1, dtype=np.int64)
    for row, entry in enumerate(group):
        ids[row, : lengths[row]] = entry["tokens"]
    starts = [0 if entry["include_prompt"] else min(entry["prompt_length"], n) for entry, n in zip(group, lengths)]
    logits = np.zeros((len(group), vocab), dtype=np.float32)
    given = (logits, ids, np.array(lengths), np.array(starts))
    if library is not np:
        given = tuple(library.from_numpy(array).to(device or "cpu") for array in given)
    packed = pack_configs(configs, device if library is not np and device not in (None, "cpu") else None)
    apply_lz_penalty_(given[0], given[1], given[2], config=packed, starts=given[3], backend=backend)
    result = given[0] if library is np else given[0].cpu().numpy()
    if not all(math.isfinite(row.sum()) for row in result):
        raise FloatingPointError("the golden contexts gave logits that are not finite")
    return result
