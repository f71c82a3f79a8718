"""llama.cpp: a logits processor for llama-cpp-python, a native sampler, and the server `lz-penalty serve-llama`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lz_penalty.engines.llama_cpp._processor import LZPenaltyProcessors
    from lz_penalty.engines.llama_cpp._sampler import native_sampler

__all__ = ["LZPenaltyProcessors", "native_sampler"]


def __getattr__(name: str) -> Any:
    """Import llama-cpp-python only when one of its names is used: checking a request does not need it."""
    if name == "LZPenaltyProcessors":
        from lz_penalty.engines.llama_cpp._processor import LZPenaltyProcessors

        return LZPenaltyProcessors
    if name == "native_sampler":
        from lz_penalty.engines.llama_cpp._sampler import native_sampler

        return native_sampler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
