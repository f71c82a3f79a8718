"""The op with unusual settings and inputs: every backend against the reference."""

from __future__ import annotations

import random
from typing import Any

from tests.fuzzing.running import Part, Trial
from tests.support import cases, native_op
from tests.support.backends import ALL

CASES, INTERPRETED = 20_000, 200
SECONDS, MEGABYTES = {"triton": 2.0}, 32.0
C = "c"
NAMES = ("numpy", "numba", "torch", C, "triton")


def part(name: str, op: Any = None) -> Part:
    """Return the cases of one backend. A test of this fuzzer replaces the backend by `op`."""
    make = _native if name == C else _backend(name, op)
    return Part(f"op-{name}", INTERPRETED if name == "triton" else CASES, SECONDS.get(name, 0.1), MEGABYTES, make)


def random_case(rng: random.Random, dtypes: tuple[str, ...], longest: int = 600) -> cases.Case:
    """Return a small batch with unusual settings, mostly short because the reference is slow."""
    length = rng.choice((0, 1, 2, rng.randint(3, 12), rng.randint(3, 40), rng.randint(3, 90)))
    rows = rng.choice((1, 1, 2, 3))
    if rng.random() < 0.01:
        rows, length = 1, longest
    window, buffer = rng.choice((1, 2, 7, 40, 200)), rng.choice((1, 2, 9, 40))
    unusual = rng.choice((0.3, 0.6, 1.0))
    return cases.case(
        rng.randrange(2**32), rows=rows, length=length, window=window, buffer=buffer, dtypes=dtypes, unusual=unusual
    )


def _backend(name: str, op: Any) -> Any:
    backend = next(one for one in ALL if one.name == name)
    ways = [one for one in ALL if one.name == name]  # Triton: in one launch and in two

    def make(rng: random.Random, _: int) -> Trial:
        way = rng.choice(ways)
        case = random_case(rng, backend.dtypes, longest=90 if name == "triton" else 600)
        return _trial(cases.Trial(case, way.library, way.name, way.device, op or way.op))

    return make


def _native(rng: random.Random, _: int) -> Trial:
    return _trial(native_op.trial(random_case(rng, ("float32",))))


def _trial(trial: cases.Trial) -> Trial:
    return Trial(trial.run, lambda _: trial.problem(), lambda: str(trial.case))
