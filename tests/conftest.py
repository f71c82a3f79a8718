"""Where there is no GPU, Triton's kernels run in its interpreter: told before anything imports Triton. Fixtures."""

import os

import hypothesis
import torch

pytest_plugins = ["bundled_fixtures"]

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# Threads that wait for each other on a busy machine make these small models ten times slower; servers inherit it.
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)

hypothesis.settings.register_profile("default", deadline=None, database=None, print_blob=True)
hypothesis.settings.load_profile("default")
