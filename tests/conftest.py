"""Where there is no GPU, Triton's kernels run in its interpreter: told before anything imports Triton."""

import os

import hypothesis
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

hypothesis.settings.register_profile("default", deadline=None, database=None, print_blob=True)
hypothesis.settings.load_profile("default")
