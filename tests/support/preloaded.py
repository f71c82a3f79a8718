"""Import what most commands need. Each process that `commands` forks has these modules already."""

import numba  # noqa: F401
import pyarrow  # noqa: F401
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TextStreamer  # noqa: F401

import lz_penalty.detection
import lz_penalty.engines.transformers
import lz_penalty.kernels.numba_cpu
import lz_penalty.kernels.torch_any  # noqa: F401

torch.set_num_threads(1)
