"""Import what most commands need, and load compiled functions. Each process that `commands` forks has them already."""

import inspect_ai.agent._acp.server  # noqa: F401 - inspect_ai imports it when an evaluation begins
import inspect_evals._registry  # noqa: F401 - inspect_ai imports it through its entry point
import numba  # noqa: F401
import numpy as np
import openai  # noqa: F401
import pyarrow  # noqa: F401
import torch
import transformers.models.llama.modeling_llama  # noqa: F401
from transformers import AutoModelForCausalLM, AutoTokenizer, TextStreamer  # noqa: F401

import lz_penalty.engines.transformers
import lz_penalty.kernels.torch_any  # noqa: F401
from lz_penalty import LZPenaltyConfig, apply_lz_penalty_
from lz_penalty.detection import find_repetition, repetition_at_end

torch.set_num_threads(1)
find_repetition("ab" * 50)
repetition_at_end("ab" * 50)
config = LZPenaltyConfig.guarded(include_prompt=True)
apply_lz_penalty_(np.zeros((1, 9), np.float32), np.array([[1, 2] * 20]), config=config, backend="numba")
