"""Measure the speed of detection: `python -m benchmarks.detection` (a few minutes) writes results/detection.json.

Times are CPU times of one thread, the best of a few rounds. The claims are ratios within one run, or far from their
limits, so that other load does not decide them. The command fails if a claim does not hold.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from functools import partial
from unittest import mock

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.capped import flags
from benchmarks.workload import arguments, machine, write_json
from lz_penalty import bundled_model
from lz_penalty.detection import (
    RepetitionDetector,
    StructureDetector,
    find_repetition,
    find_structure,
    paper20,
    repeated_substrings,
    repetition_report,
)
from lz_penalty.detection import _runs as runs
from lz_penalty.detection._verdict import CAPPED, FINISHED
from lz_penalty.engines.transformers import RepetitionStoppingCriteria

MILLION = 1_000_000
PUSH = "us_per_push"
SETTINGS = {
    "5 copies, 60 items": (5.0, 60),
    "20 copies": (20.0, 20),
    "3 copies, 12 items": (3.0, 12),
    "2 copies": (2.0, 2),
}


def seconds(call: Callable[[], object], rounds: int = 5) -> float:
    """Return the CPU seconds of a call: the minimum of some rounds, after one call to compile."""
    call()
    taken = []
    for _ in range(rounds):
        begin = time.process_time()
        call()
        taken.append(time.process_time() - begin)
    return min(taken)


# ---------------------------------------------------------------- inputs


def fibonacci(length: int) -> bytes:
    a, b = b"a", b"ab"
    while len(b) < length:
        a, b = b, b + a
    return b[:length]


def prose(length: int) -> bytes:
    """Return sentences of book passages, shuffled again whenever all are used."""
    rng, text = np.random.default_rng(0), b""
    sentences = [part.encode() for passage in bundled_model.passages() for part in passage.split(". ")]
    while len(text) < length:
        text += b". ".join(sentences[i] for i in rng.permutation(len(sentences)))
    return text[:length]


def texts(length: int) -> dict[str, bytes]:
    rng = np.random.default_rng(1)
    return {
        "prose": prose(length),
        "all equal": b"a" * length,
        "period 1,000": (rng.integers(0, 4, 1000, dtype=np.uint8).tobytes() * (length // 1000 + 1))[:length],
        "31 equal, one other": (b"a" * 31 + b"b") * (length // 32),
        "Fibonacci": fibonacci(length),
        "Thue-Morse": bytes(i.bit_count() % 2 for i in range(length)),
        "random bits": rng.integers(0, 2, length, dtype=np.uint8).tobytes(),
    }


def streams(length: int) -> dict[str, list[int]]:
    rng = np.random.default_rng(2)
    unit = rng.integers(0, 50_000, 700).tolist()
    almost = [token for i in range(length // 2000 + 1) for token in [*(unit * 3)[:1999], 60_000 + i]]
    return {
        "random, 50,000 ids": rng.integers(0, 50_000, length).tolist(),
        "Zipf": np.minimum(rng.zipf(1.3, length), 50_000).tolist(),
        "random bits": rng.integers(0, 2, length).tolist(),
        "all equal": [7] * length,
        "a loop of 700": (unit * (length // 700 + 1))[:length],
        "loops of 700 that break": almost[:length],
        "Fibonacci": list(fibonacci(length)),
    }


# ---------------------------------------------------------------- what is measured


def offline() -> list[dict]:
    """Measure `find_repetition` in megabytes per second, and how its time grows with eight times the length."""
    rows = []
    short, long = texts(MILLION // 8), texts(MILLION)
    for setting, (min_copies, min_length) in SETTINGS.items():
        for name in long:
            taken = [
                seconds(partial(find_repetition, text, min_copies=min_copies, min_length=min_length), 3)
                for text in (short[name], long[name])
            ]
            rows.append(
                {
                    "text": name,
                    "setting": setting,
                    "mb_per_s": len(long[name]) / taken[1] / 1e6,
                    "growth_over_linear": taken[1] / taken[0] / (len(long[name]) / len(short[name])),
                }
            )
    return rows


def documents() -> dict[str, float]:
    """Measure megabytes per second over texts of 4,000 characters."""
    text = prose(MILLION).decode(errors="replace")
    parts = [text[i : i + 4000] for i in range(0, len(text), 4000)]
    size = sum(len(part.encode()) for part in parts) / 1e6
    wide = [part + "\u20ac" for part in parts]
    return {
        "tandem": size / seconds(lambda: [find_repetition(part) for part in parts]),
        "tandem, not ASCII": size / seconds(lambda: [find_repetition(part) for part in wide]),
        "tandem at the end": size
        / seconds(lambda: [find_repetition(part, min_length=300, at_end=True) for part in parts]),
        "default, finished": size / seconds(lambda: [flags(part, FINISHED) for part in parts]),
        "default, cut off": size / seconds(lambda: [flags(part, CAPPED) for part in parts]),
        "paper20": size / seconds(lambda: [paper20(part) for part in parts]),
        "repeated_substrings": size / seconds(lambda: [repeated_substrings(part) for part in parts]),
        "repetition_report": size / seconds(lambda: [repetition_report(part) for part in parts]),
    }


def structure() -> dict[str, float]:
    """Measure the structure of a text: seconds for 400,000 characters of bad cases, microseconds for a pushed token."""
    size, rng = 400_000, np.random.default_rng(1)
    random_words = " ".join(rng.choice(["ab", "cd", "efg", "h,", "i.\n"], size // 4))
    texts = {
        "one letter a line": "a\n" * (size // 2),
        "words and commas": "a, " * (size // 3),
        "counting": "".join(f"case {i}: return {i};\n" for i in range(size // 22))[:size],
        "random words": random_words[:size],
        "long words": ("a" * 3000 + "b" + "a" * 3000 + ",") * (size // 6002),
    }
    found = {name: seconds(partial(find_structure, text), 3) for name, text in texts.items()}
    tokens = [random_words[i : i + 4] for i in range(0, size, 4)]

    def push() -> None:
        detector = StructureDetector()
        for token in tokens:
            detector.push(token)

    return found | {PUSH: seconds(push, 3) / len(tokens) * 1e6}


def without_numba() -> dict[str, float]:
    """Measure megabytes per second of `find_repetition` without Numba."""
    spec = importlib.util.spec_from_file_location("runs_without_numba", runs.__file__)
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, {"numba": None, "lz_penalty.kernels._compiling": None}):
        spec.loader.exec_module(module)
    found = {}
    for name, text in texts(MILLION // 10).items():
        items = np.frombuffer(text, dtype=np.uint8)
        found[name] = len(text) / seconds(lambda items=items: module.find_runs(items, 5.0, 60), 1) / 1e6
    return found


def online() -> list[dict]:
    """Measure microseconds per push over a million pushes, and the last tenth against the first."""
    rows = []
    for max_period in (1024, 8192):
        for name, stream in streams(MILLION).items():
            detector = RepetitionDetector(max_period=max_period)
            push, tenths = detector.push, []
            for first in range(0, MILLION, MILLION // 10):
                part = stream[first : first + MILLION // 10]
                begin = time.process_time()
                for token in part:
                    push(token)
                tenths.append(time.process_time() - begin)
            rows.append(
                {
                    "stream": name,
                    "max_period": max_period,
                    "us_per_push": sum(tenths) / MILLION * 1e6,
                    "last_over_first": tenths[-1] / tenths[0],
                }
            )
    return rows


def rewinding() -> float:
    """Measure microseconds to rewind four tokens and push five, as speculative decoding does."""
    rng = np.random.default_rng(3)
    detector = RepetitionDetector()
    detector.extend(rng.integers(0, 50_000, 10_000).tolist())
    drafts = rng.integers(0, 50_000, (2000, 5)).tolist()

    def steps() -> None:
        for draft in drafts:
            detector.rewind(4)
            for token in draft:
                detector.push(token)

    return seconds(steps) / len(drafts) * 1e6


def stopping() -> dict[str, float]:
    """Measure microseconds of the stopping criterion per row and step, after 4,096 tokens."""
    rng = np.random.default_rng(4)
    criteria = RepetitionStoppingCriteria(0)
    ordinary = torch.from_numpy(rng.integers(0, 50_000, (32, 4096)))
    unit = rng.integers(0, 50_000, 900).tolist()
    found = {"ordinary": ordinary, "end recurs": torch.tensor([(unit * 5)[:4096]] * 32)}
    return {name: seconds(lambda ids=ids: criteria(ids)) / 32 * 1e6 for name, ids in found.items()}


def claims(data: dict) -> list[dict]:
    """Return the claims, what was found, and whether they hold."""
    prose_mb_per_s = data["offline"][0]["mb_per_s"]
    growth = max(row["growth_over_linear"] for row in data["offline"])
    drift = max(row["last_over_first"] for row in data["online"])
    framed = data["structure"]
    equal = [7] * MILLION
    at_most = {
        "1,000,000 equal tokens, a list, offline: seconds": (seconds(partial(find_repetition, equal), 3), 2.0),
        "offline, eight times the length: time over eight times the time": (growth, 2.0),
        "structure of 400,000 characters: seconds": (max(taken for name, taken in framed.items() if name != PUSH), 2.0),
        "structure, one token: microseconds": (framed[PUSH], 10.0),
        "online, last tenth of a million pushes over the first": (drift, 1.5),
    }
    at_least = {
        "prose, one text of 1 MB: MB/s": (prose_mb_per_s, 20.0),
        "prose, texts of 4,000 characters: MB/s": (data["documents"]["tandem"], 20.0),
        "prose, the criteria for finished texts: MB/s": (data["documents"]["default, finished"], 20.0),
        "prose, the criteria for texts that were cut off: MB/s": (data["documents"]["default, cut off"], 20.0),
    }
    made = [(name, *pair, pair[0] <= pair[1]) for name, pair in at_most.items()]
    made += [(name, *pair, pair[0] >= pair[1]) for name, pair in at_least.items()]
    return [dict(zip(("claim", "found", "limit", "holds"), one, strict=True)) for one in made]


def main() -> None:
    """Measure, print, and write the results."""
    path = arguments(__doc__, "detection.json").out
    data: dict = {"machine": machine()}
    for part in (offline, documents, structure, without_numba, online, rewinding, stopping, claims):
        data[part.__name__] = part(data) if part is claims else part()
    write_json(path, data)
    console = Console()
    for part in ("offline", "online", "claims"):
        table = Table(*data[part][0], title=part)
        for row in data[part]:
            table.add_row(*(f"{value:.2f}" if isinstance(value, float) else str(value) for value in row.values()))
        console.print(table)
    console.print({part: data[part] for part in ("documents", "structure", "without_numba", "rewinding", "stopping")})
    if not all(claim["holds"] for claim in data["claims"]):
        sys.exit("a claim does not hold")


if __name__ == "__main__":
    main()
