"""Starts vLLM engines in their own processes: offline (`generate`) and as an OpenAI-compatible server (`serve`)."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from lz_penalty import bundled_model
from tests.support import ROOT
from tests.support.processes import EngineFailed, run_task, serving

__all__ = ["PROCESSOR", "SPYING", "V2", "WARM", "EngineFailed", "environment", "generate", "reuse", "serve"]

HERE = Path(__file__).resolve().parent
PROCESSOR = "lz_penalty.engines.vllm:LZPenaltyLogitsProcessor"
SPYING = "tests.engines.vllm.spying:SpyingProcessor"
WARM = "tests.engines.vllm.kinds:WarmProcessor"
V2 = {
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "TRITON_INTERPRET": "1",
    "PYTHONPATH": os.pathsep.join(map(str, (HERE / "v2_on_cpu", ROOT, ROOT / "src"))),
}
_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "src"))),
}


def environment(*folders: Path) -> dict[str, str]:
    """Return the environment of an engine's process, with these folders on its import path."""
    path = os.pathsep.join([*map(str, folders), _ENVIRONMENT["PYTHONPATH"]])
    return os.environ | _ENVIRONMENT | {"PYTHONPATH": path}


def generate(requests: list[dict[str, Any]], env: dict[str, str] | None = None, **engine: Any) -> dict[str, Any]:
    """Run requests through `vllm.LLM`: `{"prompt": ids, **fields of SamplingParams}`; see `offline.py`."""
    engine = {"logits_processors": [PROCESSOR]} | engine
    return run_task("tests.engines.vllm.offline", {"engine": engine, "requests": requests}, _ENVIRONMENT | (env or {}))


def reuse(
    prompts: list[list[int]], params: list[dict[str, Any]], env: dict[str, str], **engine: Any
) -> list[dict[str, Any]]:
    """Use every one of these `SamplingParams` twice, for all prompts; see `reusing.py`."""
    task = {"engine": {"logits_processors": [PROCESSOR]} | engine, "prompts": prompts, "params": params}
    return run_task("tests.engines.vllm.reusing", task, _ENVIRONMENT | env)


def serve(
    *options: str, env: dict[str, str] | None = None, python: Path | str = sys.executable
) -> AbstractContextManager[str]:
    """An OpenAI-compatible server in its own process; yields its address."""
    command = ["vllm.entrypoints.openai.api_server", "--model", str(bundled_model.path())]
    command += ["--served-model-name", "bundled", "--dtype", "float32", "--enforce-eager"]
    command += ["--logits-processors", PROCESSOR, *options]
    return serving(command, _ENVIRONMENT | (env or {}), (str(python), "-m"))
