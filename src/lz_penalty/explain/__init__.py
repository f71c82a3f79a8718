"""Why a token was penalised: plain data, in the terminal and as a page. No numbers of its own: they are the reference's."""

from lz_penalty.explain._explanation import Candidate, Explanation, Loop, Match, explain
from lz_penalty.explain._sequence import SequenceExplanation, Token, explain_sequence

__all__ = [
    "Candidate",
    "Explanation",
    "Loop",
    "Match",
    "SequenceExplanation",
    "Token",
    "explain",
    "explain_sequence",
]
