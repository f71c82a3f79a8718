"""Engines in their own processes, for the tests of `engines/vllm` and `engines/sglang`: a task run offline, or a server."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class EngineFailed(Exception):
    """The engine's process ended with an error; the message is what it had printed."""


def run_task(
    module: str, task: dict[str, Any], env: dict[str, str], python: Path | str = sys.executable, seconds: int = 900
) -> dict[str, Any]:
    """Run `PYTHON -m MODULE TASK.json RESULT.json`, and return its result."""
    with tempfile.TemporaryDirectory() as folder:
        given, result = Path(folder, "task.json"), Path(folder, "result.json")
        given.write_text(json.dumps(task))
        done = subprocess.run(
            [python, "-m", module, given, result],
            env=os.environ | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
        )
        if done.returncode or not result.exists():
            raise EngineFailed(done.stdout)
        return json.loads(result.read_text())


@contextlib.contextmanager
def serving(
    command: list[str], env: dict[str, str], launcher: tuple[str, ...] = (sys.executable, "-m")
) -> Iterator[str]:
    """Start a server with `python -m COMMAND --port ...`, or with another launcher; yield its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [*launcher, *command, "--host", "127.0.0.1", "--port", str(port)]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, env=os.environ | env, stdout=log, stderr=log)
        try:
            _wait(process, f"http://127.0.0.1:{port}/health", log)
            try:
                yield f"http://127.0.0.1:{port}"
            finally:
                if process.poll() is not None:
                    raise EngineFailed("the server has died:\n" + _text(log))
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait(process: subprocess.Popen, address: str, log: Any) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise EngineFailed(_text(log))
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=5):  # also a time-out while it reads
            return
        time.sleep(1)
    raise EngineFailed("the server did not start within 5 minutes:\n" + _text(log))


def _text(log: Any) -> str:
    log.seek(0)
    return log.read()
