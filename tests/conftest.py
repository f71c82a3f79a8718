"""Set up every test: fixtures of the bundled model, one thread, and what the main environment has besides."""

import os
from importlib.util import find_spec

import torch

pytest_plugins = ["tests.support.bundled_fixtures"]

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Threads that wait for each other on a busy machine make these small models ten times slower; servers inherit the setting.
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)

if find_spec("hypothesis"):  # the environments of vLLM, SGLang, llama.cpp and mlx-lm do not have it
    import hypothesis

    hypothesis.settings.register_profile("default", deadline=None, database=None, print_blob=True)
    hypothesis.settings.load_profile("default")
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton
