"""mlx-lm: a logits processor that adds the penalty to the lazy graph."""

from lz_penalty.engines.mlx_lm._processor import LZPenaltyProcessor

__all__ = ["LZPenaltyProcessor"]
