"""Policies: which penalty applies in which section of a text, and what happens when a loop continues. Needs only NumPy.

    sections = Sections.of(tokenizer)
    state = sections.read(prompt_ids)
    config = getattr(Policy(), state.section)        # for the next token
    state = sections.advance(state, token)

`Tracker` does this for one generation and adds the ladder; engines use it.
"""

from __future__ import annotations

from lz_penalty.policy._markers import KNOWN, markers_of
from lz_penalty.policy._places import SECTIONS, Pair
from lz_penalty.policy._rules import POLICY_FIELDS, Asked, Ladder, Policy, RequestPolicy, settings_from_request
from lz_penalty.policy._sections import Sections, State
from lz_penalty.policy._tracking import Tracker, closers_of
from lz_penalty.policy._vocabulary import turn_ids, vocabulary_of

__all__ = [
    "KNOWN",
    "POLICY_FIELDS",
    "SECTIONS",
    "Asked",
    "Ladder",
    "Pair",
    "Policy",
    "RequestPolicy",
    "Sections",
    "State",
    "Tracker",
    "closers_of",
    "markers_of",
    "settings_from_request",
    "turn_ids",
    "vocabulary_of",
]
