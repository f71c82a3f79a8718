"""Starts SGLang engines in their own processes: offline (`generate`) and as a server (`serve`)."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from lz_penalty import bundled_model
from tests.support import ROOT
from tests.support.processes import EngineFailed, run_task, serving
from tests.support.requests_and_truth import Request

__all__ = ["ENGINE", "RETRACT", "EngineFailed", "as_tasks", "environment", "generate", "serve"]

HERE = Path(__file__).resolve().parent
ENGINE = {
    "model_path": str(bundled_model.path()),
    "device": "cpu",
    "dtype": "float32",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "grammar_backend": "xgrammar",
    "disable_cuda_graph": True,
    "max_total_tokens": 20_000,
}
RETRACT = {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "8"}  # SGLang's own way of testing that
_FOLDERS = (HERE / "sglang_on_cpu", HERE / "spying", ROOT, ROOT / "src")
_ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join(map(str, _FOLDERS)),
}


def as_tasks(requests: list[Request], **sampling: Any) -> list[dict[str, Any]]:
    """Return the requests in the form of `generate`; `sampling` overrides their own."""
    return [
        {
            "prompt": one.prompt,
            "max_new_tokens": one.max_tokens,
            "custom_params": one.fields,
            **one.sampling,
            **sampling,
        }
        for one in requests
    ]


def environment(*folders: Path) -> dict[str, str]:
    """Return the environment of an engine's process, with these folders on its import path."""
    path = os.pathsep.join([*map(str, folders), _ENVIRONMENT["PYTHONPATH"]])
    return os.environ | _ENVIRONMENT | {"PYTHONPATH": path}


def generate(requests: list[dict[str, Any]], env: dict[str, str] | None = None, **engine: Any) -> dict[str, Any]:
    """Run requests through one `sglang.Engine`, all at once; see `offline.py`.

    Args:
        requests: `{"prompt": ids, **sampling parameters}`; with `"refused": True` the request may be refused.
        env: further environment variables.
        engine: settings of the engine.

    Returns:
        `tokens`, the completion of every request or the message of its refusal, `reasons`, why it finished, and `counts`,
        what `spying.py` has counted.
    """
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder, "counts.json")
        task = {"engine": ENGINE | engine, "requests": requests}
        result = run_task("tests.engines.sglang.offline", task, _ENVIRONMENT | {"SPYING": str(counts)} | (env or {}))
        return result | {"counts": json.loads(counts.read_text()) if counts.exists() else {}}


def serve(*options: str, env: dict[str, str] | None = None) -> AbstractContextManager[str]:
    """An SGLang server in its own process; yields its address."""
    command = ["sglang.launch_server", "--served-model-name", "bundled"]
    for name, value in ENGINE.items():
        command += ["--" + name.replace("_", "-")] + ([] if value is True else [str(value)])
    return serving([*command, *options], _ENVIRONMENT | (env or {}))
