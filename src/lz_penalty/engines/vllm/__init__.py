"""vLLM: one logits processor for both model runners (V1 of vLLM 0.26 and later, V2 of 0.31 and later).

    LLM(model, logits_processors=["lz_penalty.engines.vllm:LZPenaltyLogitsProcessor"])
    SamplingParams(extra_args={"lz_preset": "guarded"})

The user names the class. An entry point would force old releases onto another runner and hide output ids from it. Importing
this package imports vLLM only when the class is asked for.

    _processor.py    the class that vLLM loads
    _startup.py      what it checks and reads when vLLM starts
    _v1.py           a step of the V1 runner, with a walk from vLLM to the kernel; `_staging.py` and `_c_step.py` make it fast
    _v2.py           a step of the V2 runner; `_slot_texts.py` brings the newest tokens to the host where a policy needs them
    _generations.py  starts and counts requests with a policy; `_ending.py` is how vLLM ends one
    _counting.py     loops in all other requests, if the server's settings ask for them
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lz_penalty.engines.vllm._processor import LZPenaltyLogitsProcessor

__all__ = ["LZPenaltyLogitsProcessor"]


def __getattr__(name: str) -> Any:
    """Import the processor, and with it vLLM, when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from lz_penalty.engines.vllm import _processor

    return getattr(_processor, name)
