"""Where there is no GPU, Triton's kernels run in its interpreter: told before anything imports Triton. Fixtures."""

import os

import hypothesis
import pytest
import torch

from lz_penalty import bundled_model

pytest_plugins = ["bundled_fixtures"]

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# Threads that wait for each other on a busy machine make these small models ten times slower; servers inherit it.
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)

hypothesis.settings.register_profile("default", deadline=None, database=None, print_blob=True)
hypothesis.settings.load_profile("default")


@pytest.fixture(scope="session")
def prompts(tokenizer):
    """Four prompts of different lengths."""
    texts = bundled_model.prompts()[:4]
    return [tokenizer(text).input_ids[: 12 + 9 * i] for i, text in enumerate(texts)]
