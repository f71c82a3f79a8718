"""The Lempel-Ziv penalty: language models that do not fall into endless repetition.

At each step the penalty simulates an LZ77-style compressor over the recent tokens. It charges every possible next token
by the bits that the token would cost, so tokens that merely extend a repeat lose. Importing this package imports the
standard library only. The op imports NumPy when it is first used, and each backend imports its own array library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lz_penalty.config import LZPenaltyConfig
from lz_penalty.errors import BackendUnavailableError, LZPenaltyError

if TYPE_CHECKING:
    from lz_penalty._backends import available_backends, choose_backend
    from lz_penalty._packing import PackedConfig, pack_configs
    from lz_penalty.ops import apply_lz_penalty_, marginal_codelengths, prepare_lz_penalty

__version__ = "0.1.0"

__all__ = [
    "BackendUnavailableError",
    "LZPenaltyConfig",
    "LZPenaltyError",
    "PackedConfig",
    "apply_lz_penalty_",
    "available_backends",
    "choose_backend",
    "marginal_codelengths",
    "pack_configs",
    "prepare_lz_penalty",
]

_LATER = {
    "apply_lz_penalty_": "ops",
    "available_backends": "_backends",
    "choose_backend": "_backends",
    "marginal_codelengths": "ops",
    "prepare_lz_penalty": "ops",
    "PackedConfig": "_packing",
    "pack_configs": "_packing",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'lz_penalty' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"lz_penalty.{_LATER[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
