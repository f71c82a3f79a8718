"""Starts vLLM engines in their own processes: offline (`generate`) and as an OpenAI-compatible server (`serve`)."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lz_penalty import bundled_model

HERE = Path(__file__).resolve().parent
PROCESSOR = "lz_penalty.engines.vllm:LZPenaltyLogitsProcessor"
SPYING = "spying:SpyingProcessor"
V2 = {
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "TRITON_INTERPRET": "1",
    "PYTHONPATH": os.pathsep.join((str(HERE / "v2_on_cpu"), str(HERE), str(HERE.parent / "src"))),
}
_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join((str(HERE), str(HERE.parent / "tests"), str(HERE.parent / "src"))),
}


class EngineFailed(Exception):
    """The engine's process ended with an error; the message is what it had printed."""


def generate(requests: list[dict[str, Any]], env: dict[str, str] | None = None, **engine: Any) -> dict[str, Any]:
    """Run requests through `vllm.LLM`: `{"prompt": ids, **fields of SamplingParams}`; see `offline.py`."""
    engine = {"logits_processors": [PROCESSOR]} | engine
    with tempfile.TemporaryDirectory() as folder:
        task, result = Path(folder, "task.json"), Path(folder, "result.json")
        task.write_text(json.dumps({"engine": engine, "requests": requests}))
        done = subprocess.run(
            [sys.executable, HERE / "offline.py", task, result],
            env=os.environ | _ENVIRONMENT | (env or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=400,
            check=False,
        )
        if done.returncode or not result.exists():
            raise EngineFailed(done.stdout)
        return json.loads(result.read_text())


@contextlib.contextmanager
def serve(*options: str, env: dict[str, str] | None = None) -> Iterator[str]:
    """An OpenAI-compatible server in its own process; yields its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(bundled_model.path())]
    command += ["--served-model-name", "bundled", "--dtype", "float32", "--enforce-eager", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--logits-processors", PROCESSOR, *options]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, env=os.environ | _ENVIRONMENT | (env or {}), stdout=log, stderr=log)
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
        with contextlib.suppress(urllib.error.URLError, ConnectionError), urllib.request.urlopen(address, timeout=5):
            return
        time.sleep(1)
    raise EngineFailed("the server did not start within 5 minutes:\n" + _text(log))


def _text(log: Any) -> str:
    log.seek(0)
    return log.read()
