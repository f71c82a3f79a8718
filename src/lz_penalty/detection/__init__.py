"""Finding repetition in token ids, text and bytes: adjacent copies of a primitive unit. Needs NumPy alone.

`find_repetition` is compiled where Numba is installed.
"""

from __future__ import annotations

from lz_penalty.detection.tandem import Repetition, find_repetition, find_repetitions, is_degenerate, is_loop

__all__ = ["Repetition", "find_repetition", "find_repetitions", "is_degenerate", "is_loop"]
