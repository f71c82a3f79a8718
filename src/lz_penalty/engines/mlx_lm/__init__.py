"""mlx-lm: a logits processor that adds the penalty to the lazy graph, and the server `lz-penalty serve-mlx`."""

from lz_penalty.engines.mlx_lm._processor import LZPenaltyProcessor

__all__ = ["LZPenaltyProcessor"]
