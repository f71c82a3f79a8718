"""Finding repetition in token ids, text and bytes: adjacent copies of a primitive unit. Needs NumPy alone."""

from __future__ import annotations

from lz_penalty.detection.tandem import Repetition, find_repetition, is_degenerate, is_loop

__all__ = ["Repetition", "find_repetition", "is_degenerate", "is_loop"]
