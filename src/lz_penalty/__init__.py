"""The Lempel-Ziv penalty: language models that do not fall into endless repetition.

At each step an LZ77-style compressor is simulated over the recent tokens; every possible next token is charged by
how many bits it would cost, so that tokens which merely extend a repeat lose. Importing this package imports
neither torch nor numba nor transformers.
"""

from lz_penalty.config import LZPenaltyConfig
from lz_penalty.errors import BackendUnavailableError, LZPenaltyError
from lz_penalty.ops import apply_lz_penalty_, available_backends, choose_backend, marginal_codelengths
from lz_penalty.packing import PackedConfig, pack_configs

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
]
