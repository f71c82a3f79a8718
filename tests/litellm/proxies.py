"""A LiteLLM proxy in a process of its own, and the interpreters of servers that it is in front of."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import ROOT
from tests.support.guarding import free_port, wait_for

__all__ = ["KEY", "interpreter", "running"]

KEY = "sk-" + secrets.token_hex(32)
ENVIRONMENTS = "LZ_PENALTY_ENVIRONMENTS"


@contextmanager
def running(folder: Path, config: str) -> Iterator[str]:
    """Start a proxy with this configuration; yield its address."""
    (folder / "config.yaml").write_text(config)
    port = free_port()
    path = os.pathsep.join(map(str, (ROOT / "src", ROOT)))
    command = [
        str(Path(sys.executable).parent / "litellm"),
        "--config",
        str(folder / "config.yaml"),
        "--port",
        str(port),
    ]
    with (folder / "log").open("w") as log:
        env = os.environ | {"PYTHONPATH": path, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MASTER_KEY": KEY}
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        try:
            wait_for(port, 180)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(60)


def interpreter(environment: str) -> Path:
    """Return the Python of another environment, such as `.venv-vllm`: `make` has installed it in the root of the repository."""
    python = Path(os.environ.get(ENVIRONMENTS, ROOT)) / environment / "bin" / "python"
    if not python.exists():
        raise FileNotFoundError(
            f"{python}: `make test-litellm` installs it; or set {ENVIRONMENTS} to the folder that has it."
        )
    return python
