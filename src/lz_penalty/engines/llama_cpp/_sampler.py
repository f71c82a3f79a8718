"""The penalty as a native llama.cpp sampler, for sampler chains. It is compiled on demand and runs without Python.

    penalty = native_sampler(llm, LZPenaltyConfig.guarded())
    llama_cpp.llama_sampler_chain_add(chain, penalty)  # the chain frees it

The chain accepts only the sampled tokens. If the prompt is to count, accept its tokens first:

    for token in prompt_tokens:
        llama_cpp.llama_sampler_accept(penalty, token)

C and C++ programs include `lz_penalty_llama.h` instead (see `lz_penalty.native.include_dir`).
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import llama_cpp
from llama_cpp import Llama

from lz_penalty.config import LZPenaltyConfig
from lz_penalty.engines.llama_cpp._processor import exempting_special
from lz_penalty.errors import BackendUnavailableError, LZPenaltyError, show
from lz_penalty.native import NativeSettings, include_dir, native_settings
from lz_penalty.native._building import load

__all__ = ["native_sampler"]

_FUNCTIONS = (
    *("name", "accept", "apply", "reset", "clone", "free"),
    *("backend_init", "backend_accept", "backend_apply", "backend_set_input", "backend_reset", "copy_state"),
)


def native_sampler(llm: Llama, config: LZPenaltyConfig, *, penalise_special_tokens: bool = False) -> Any:
    """Return a `llama_sampler *` for llama.cpp's functions. Its history is the tokens that it accepts.

    Args:
        llm: the model, for the size of its vocabulary and its special tokens.
        config: the settings. `include_prompt` is ignored: the caller decides whether to accept the prompt's tokens.
        penalise_special_tokens: do not exempt special tokens.

    Raises:
        BackendUnavailableError: there is no compiler, or this llama.cpp has another sampler interface.
    """
    if not isinstance(config, LZPenaltyConfig):
        raise LZPenaltyError(f"config = {show(config)}: must be an LZPenaltyConfig, such as LZPenaltyConfig.guarded().")
    if not penalise_special_tokens:
        config = exempting_special(config, llm)
    init = ctypes.cast(llama_cpp.llama_cpp._lib.llama_sampler_init, ctypes.c_void_p)
    address = _library().lz_penalty_llama_new(init, native_settings(config), llm.n_vocab())
    if not address:
        raise LZPenaltyError("llama.cpp could not create a sampler: out of memory.")
    return ctypes.cast(address, llama_cpp.llama_sampler_p_ctypes)


@lru_cache(maxsize=None)
def _library() -> Any:
    """Return the compiled sampler; raise if it does not fit the loaded llama.cpp."""
    _check_functions()
    library = load("llama_sampler.c", include_dir())
    compiled = (ctypes.c_size_t * 7)()
    library.lz_penalty_llama_abi(compiled)
    if tuple(compiled) != _layout():
        raise BackendUnavailableError(_other_interface(f"layout {_layout()} instead of {tuple(compiled)}"))
    library.lz_penalty_llama_new.argtypes = [ctypes.c_void_p, ctypes.POINTER(NativeSettings), ctypes.c_int32]
    library.lz_penalty_llama_new.restype = ctypes.c_void_p
    return library


def _check_functions() -> None:
    """Raise unless llama.cpp's sampler interface has exactly these functions, in this order."""
    names = tuple(name for name, *_ in getattr(llama_cpp.llama_sampler_i, "_fields_", ()))
    if names != _FUNCTIONS:
        raise BackendUnavailableError(_other_interface(f"functions {names}"))


def _layout() -> tuple[int, ...]:
    functions: Any = llama_cpp.llama_sampler_i
    token: Any = llama_cpp.llama_token_data
    array: Any = llama_cpp.llama_token_data_array
    return (
        ctypes.sizeof(functions),
        functions.copy_state.offset,
        ctypes.sizeof(llama_cpp.llama_sampler),
        ctypes.sizeof(token),
        token.logit.offset,
        ctypes.sizeof(array),
        array.sorted.offset,
    )


def _other_interface(difference: str) -> str:
    return (
        f"llama-cpp-python {llama_cpp.__version__} has another sampler interface than 0.3.36 ({difference}): use "
        "LZPenaltyProcessors, which does not need it, or install 0.3.36."
    )
