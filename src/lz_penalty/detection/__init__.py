"""Find repetition in token ids, text and bytes: adjacent copies of a primitive unit. Needs only NumPy.

`find_repetition` is compiled if Numba is installed.
"""

from __future__ import annotations

from lz_penalty.detection._drift import Drift, find_drift
from lz_penalty.detection._metrics import RepetitionReport, distinct, repetition_report, seq_rep
from lz_penalty.detection._online import RepetitionDetector, repetition_at_end, stop_on_repetition
from lz_penalty.detection._structure import StructuralRun, StructureDetector, find_block, find_structure
from lz_penalty.detection._substrings import (
    RepeatedGram,
    RepeatedSubstring,
    paper20,
    repeated_gram,
    repeated_substrings,
)
from lz_penalty.detection._tandem import (
    Repetition,
    find_endless,
    find_repetition,
    find_repetitions,
    is_degenerate,
    is_endless,
    is_loop,
)
from lz_penalty.detection._tolerant import CounterRun, EditedRun, find_counter, find_edited

__all__ = [
    "CounterRun",
    "Drift",
    "EditedRun",
    "RepeatedGram",
    "RepeatedSubstring",
    "Repetition",
    "RepetitionDetector",
    "RepetitionReport",
    "StructuralRun",
    "StructureDetector",
    "distinct",
    "find_block",
    "find_counter",
    "find_drift",
    "find_edited",
    "find_endless",
    "find_repetition",
    "find_repetitions",
    "find_structure",
    "is_degenerate",
    "is_endless",
    "is_loop",
    "paper20",
    "repeated_gram",
    "repeated_substrings",
    "repetition_at_end",
    "repetition_report",
    "seq_rep",
    "stop_on_repetition",
]
