"""Explain why a token was penalised: as plain data, in the terminal, and as a page. All numbers are the reference's."""

from lz_penalty.explain._explanation import Candidate, Explanation, Gate, Loop, Match, explain
from lz_penalty.explain._sequence import SequenceExplanation, Token, explain_sequence

__all__ = [
    "Candidate",
    "Explanation",
    "Gate",
    "Loop",
    "Match",
    "SequenceExplanation",
    "Token",
    "explain",
    "explain_sequence",
]
