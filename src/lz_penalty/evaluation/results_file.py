"""Write results as JSON, with the version and the machine that made them; a file is written completely or not at all."""

from __future__ import annotations

import json
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import lz_penalty
from lz_penalty._files import write_file
from lz_penalty.evaluation._machine import cpu_name

__all__ = ["write_results"]


def write_results(path: Path, plan: dict[str, Any], results: list[Any]) -> None:
    """Write the results, and the plan that made them."""
    data = {"lz_penalty": lz_penalty.__version__, "machine": _machine(), "plan": plan, "results": results}
    write_file(path, json.dumps(data, indent=2) + "\n")


def _machine() -> dict[str, str]:
    versions = {name: metadata.version(name) for name in ("torch", "transformers", "numpy")}
    machine = {"cpu": cpu_name(), "python": platform.python_version(), **versions}
    if torch.cuda.is_available():
        machine["gpu"] = torch.cuda.get_device_name()
    return machine
