"""Files of JSON lines, which may be compressed: the questions, and the results of jobs.

A result file contains a line that describes the job and the machine, then a line per answer or text.
"""

from __future__ import annotations

import gzip
import json
import lzma
import os
import platform
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import lz_penalty
from lz_penalty._files import write_file
from lz_penalty.errors import LZPenaltyError
from lz_penalty.evaluation._machine import cpu_name

__all__ = ["RESULT", "machine", "part_of", "read_lines", "read_result", "write_result"]

RESULT = ".jsonl.xz"  # the end of a result file's name
PACKAGES = ("numpy", "numba", "torch", "triton", "transformers")

Record = dict[str, Any]


def read_lines(path: Path) -> list[Record]:
    """Return the records of a file of JSON lines, which may be compressed (.xz, .gz)."""
    opened: Any = {".xz": lzma.open, ".gz": gzip.open}.get(path.suffix, open)
    with opened(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def part_of(items: Sequence[Any], part: str) -> list[Any]:
    """Return the items with an even number to `choose` settings with, those with an odd number to `publish`, or `all`."""
    return list(items[0 if part == "choose" else 1 :: 2]) if part != "all" else list(items)


def read_result(path: Path) -> tuple[Record, list[Record]]:
    """Return the description and the records of a result file."""
    try:
        about, *rows = read_lines(path)
    except (OSError, ValueError, EOFError, lzma.LZMAError) as error:
        raise LZPenaltyError(f"{path}: not a result of a job ({error}). Delete it, and run the job again.") from None
    return about, rows


def write_result(path: Path, about: Record, rows: Iterable[Record]) -> None:
    """Write a result file completely or not at all."""
    text = "".join(json.dumps(line) + "\n" for line in (about, *rows))
    write_file(path, lzma.compress(text.encode()))


@cache
def machine() -> Record:
    """Return what results depend on: the processor, the GPU, and the versions of packages."""
    found: Record = {"cpu": cpu_name(), "cores": os.cpu_count(), "gpu": _gpu(), "vllm": _vllm()}
    found["python"] = platform.python_version()
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found | {"lz_penalty": lz_penalty.__version__, "date": datetime.now(timezone.utc).date().isoformat()}


def _gpu() -> str:
    try:
        import torch
    except ModuleNotFoundError:
        return "none"
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "none"


def _vllm() -> str | None:
    found = metadata.packages_distributions().get("vllm")
    return metadata.version(found[0]) if found else None
