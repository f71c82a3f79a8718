"""vLLM: one logits processor for both model runners (V1 of vLLM 0.26 and later, V2 of 0.31 and later).

    LLM(model, logits_processors=["lz_penalty.engines.vllm:LZPenaltyLogitsProcessor"])
    SamplingParams(extra_args={"lz_preset": "guarded"})

Named by the user; an entry point would force old releases onto another runner and hide output ids from us.
"""

from lz_penalty.engines.vllm._processor import LZPenaltyLogitsProcessor

__all__ = ["LZPenaltyLogitsProcessor"]
