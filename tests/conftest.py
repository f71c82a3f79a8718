"""Set up every test: fixtures of the bundled model, one thread, Hypothesis, and Triton's interpreter."""

import os
from importlib.util import find_spec
from pathlib import Path

import torch

from tests.support import DEEP

TESTS = Path(__file__).resolve().parent
# With two workers, a long file that begins last keeps one of them waiting.
LONGEST_FIRST = (
    "evaluation/study/test_servers.py",
    "core/test_containers.py",
    "engines/transformers/test_serve.py",
    "engines/transformers/test_policy_generate.py",
    "engines/transformers/test_processor.py",
    "engines/transformers/test_batching.py",
    "evaluation/test_replay.py",
    "detection/test_ray.py",
    "detection/test_scan.py",
    "cli/test_cli.py",
    "kernels/test_equivalence.py",
    "core/test_fuzzing.py",
    "engines/transformers/test_policy.py",
    "evaluation/test_cost.py",
    "evaluation/study/test_local.py",
    "evaluation/test_recording.py",
)

pytest_plugins = ["tests.support.bundled_fixtures"]

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Threads that wait for each other on a busy machine make these small models ten times slower; servers inherit the setting.
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)

if find_spec("hypothesis"):  # the environments of vLLM, SGLang, llama.cpp and mlx-lm do not have it
    import hypothesis

    every = {"deadline": None, "database": None, "print_blob": True}
    hypothesis.settings.register_profile("quick", max_examples=30, **every)
    hypothesis.settings.register_profile("deep", max_examples=500, **every)
    hypothesis.settings.load_profile("deep" if DEEP else "quick")
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton


def pytest_collection_modifyitems(items):
    """Put the files that take longest first; the others keep their order."""
    ranks = {TESTS / name: rank for rank, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))
