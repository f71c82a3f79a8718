"""The backends: one file each, one `apply` each, importing only its own array library.

They never validate and never fall back: `lz_penalty.ops` has checked everything and chosen. All of them write
`min(logit, original + strength * bits)` for every occurrence in the window, so that the smallest value of a token
wins without a table over the vocabulary: adjustments are never positive, so the minimum is the definition's.

    apply(logits, token_ids, lengths, starts, row_to_slot, tail_ids, tail_lengths, newest_ids, packed, vocab_size)
"""

from __future__ import annotations

import numpy as np


def store_newest(
    token_ids: np.ndarray, lengths: np.ndarray, row_to_slot: np.ndarray | None, newest_ids: np.ndarray
) -> None:
    """Write the newest tokens to the histories, for the backends on NumPy arrays."""
    rows = np.flatnonzero((newest_ids >= 0) & (lengths > 0))
    token_ids[rows if row_to_slot is None else row_to_slot[rows], lengths[rows] - 1] = newest_ids[rows]
