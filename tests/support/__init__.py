"""Helpers that tests share: generated cases, truths to compare with, servers and processes."""

import os
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
EXAMPLES = ROOT / "examples"

DEEP: bool = os.environ.get("LZ_PENALTY_DEEP") == "1"  # `make test-deep`
T = TypeVar("T")


def quick_or_deep(quick: T, deep: T) -> T:
    """Return `quick` in `make test` and `deep` in `make test-deep`: a number of examples, or the cases themselves."""
    return deep if DEEP else quick
