"""Where the penalty applies: sections of a generation, and the penalty of each. Standard library only.

sections = Sections.of(tokenizer)
state = sections.read(prompt_ids)
config = getattr(Policy(), state.section)        # of the token to come
state = sections.advance(state, token)
"""

from __future__ import annotations

from lz_penalty.policy.markers import KNOWN, markers_of
from lz_penalty.policy.places import SECTIONS, Pair
from lz_penalty.policy.rules import POLICY_FIELDS, Policy, settings_from_request
from lz_penalty.policy.sections import Sections, State
from lz_penalty.policy.vocabulary import turn_ids, vocabulary_of

__all__ = [
    "KNOWN",
    "POLICY_FIELDS",
    "SECTIONS",
    "Pair",
    "Policy",
    "Sections",
    "State",
    "markers_of",
    "settings_from_request",
    "turn_ids",
    "vocabulary_of",
]
