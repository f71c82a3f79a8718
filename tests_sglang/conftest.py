"""Real SGLang engines on the bundled model, each in its own process."""

import os
import sys
from pathlib import Path

import torch

sys.path[:0] = [str(Path(__file__).parent.parent / "tests"), str(Path(__file__).parent / "sglang_on_cpu")]
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import sitecustomize  # noqa: E402, F401  what SGLang's own processes find by themselves
from bundled_fixtures import model, special, tokenizer  # noqa: E402, F401

torch.set_num_threads(1)
