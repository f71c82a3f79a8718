"""Real vLLM engines on the bundled model, each in its own process."""

import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from bundled_fixtures import model, special, tokenizer  # noqa: F401

torch.set_num_threads(1)
