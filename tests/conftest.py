"""Set up every test: fixtures of the bundled model, one thread, Hypothesis, and Triton's interpreter."""

import os
from importlib.util import find_spec
from pathlib import Path

import torch

from tests.support import DEEP

TESTS = Path(__file__).resolve().parent
# With two workers, a long file that begins last keeps one of them waiting.
LONGEST_FIRST = (
    "core/test_containers.py",
    "engines/transformers/test_serve.py",
    "evaluation/study/test_servers.py",
    "evaluation/study/test_real_runs.py",
    "guard/test_faults.py",
    "guard/test_proxy.py",
    "engines/transformers/test_processor.py",
    "engines/transformers/test_policy_generate.py",
    "engines/transformers/test_custom_generate.py",
    "engines/transformers/test_batching.py",
    "kernels/test_warm_up.py",
    "cli/test_cli.py",
    "detection/test_detect_cli.py",
    "detection/test_scan.py",
    "kernels/test_equivalence.py",
    "evaluation/test_replay.py",
    "detection/test_ray.py",
    "engines/transformers/test_assistants.py",
    "core/test_fuzzing.py",
    "evaluation/test_duality.py",
    "docs/test_examples.py",
    "core/test_bundled_model.py",
    "core/test_golden.py",
    "engines/transformers/test_stopping.py",
    "evaluation/study/test_local.py",
)

pytest_plugins = ["tests.support.bundled_fixtures"]

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Threads that wait for each other on a busy machine make these small models ten times slower; servers inherit the setting.
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)

if find_spec("hypothesis"):  # the environments of vLLM, SGLang, llama.cpp and mlx-lm do not have it
    import hypothesis

    every = {"deadline": None, "database": None, "print_blob": True}
    hypothesis.settings.register_profile("quick", max_examples=20, **every)
    hypothesis.settings.register_profile("deep", max_examples=500, **every)
    hypothesis.settings.load_profile("deep" if DEEP else "quick")
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton


def pytest_collection_modifyitems(items):
    """Put the files that take longest first; the others keep their order."""
    ranks = {TESTS / name: rank for rank, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))
