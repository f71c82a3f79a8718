"""vLLM: one logits processor for both model runners (V1 of vLLM 0.26 and later, V2 of 0.31 and later).

    LLM(model, logits_processors=["lz_penalty.engines.vllm:LZPenaltyLogitsProcessor"])
    SamplingParams(extra_args={"lz_preset": "guarded"})

The user names the class. We register no entry point: in vLLM before 0.31 it would force the V1 runner on all users, also on
those without the penalty, and hide the output ids from the class. Importing this package does not import vLLM; using the class
does.

    _processor.py   the class that vLLM loads; it passes every call to the state for its runner
    _startup.py     what the class checks and reads when vLLM starts
    _v1.py          `V1State`, the state for the V1 runner. It begins with a walk through a step, from vLLM to the kernel
    _staging.py     the memory through which V1 passes each step's new tokens to the device
    _c_step.py      the same step of V1 in C
    _no_wait.py     lets V1 go on while only the device has the newest tokens
    _late_repair.py completes vLLM's lists of tokens one step later
    _known_vllm.py  whether this vLLM works inside as `_no_wait.py` expects
    _v2.py          `V2State`, the state for the V2 runner
    _slot_texts.py  brings the newest tokens of V2 to the host, where a policy needs them
    _registry.py    makes and counts the `Generation` of every request with a policy
    _ending.py      how vLLM ends a request that the ladder stops
    _counting.py    counts loops in requests whose policy does not, if the server has `count_loops`
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
