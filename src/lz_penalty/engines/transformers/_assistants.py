"""Assistants with a tokenizer of their own: their drafts are not penalised, the target's tokens are.

`generate` passes the target's processors to the assistant too, which calls them with the ids and scores of another
vocabulary. Prompt length, left padding, exempt ids and markers belong to the target and mean nothing there. So the candidate
generators of transformers are wrapped when this module is imported. Other processors are not affected.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from transformers.generation import candidate_generator

from lz_penalty.engines.transformers._patching import Patches

__all__ = ["IN_ANOTHER_VOCABULARY"]

IN_ANOTHER_VOCABULARY: ContextVar[bool] = ContextVar("IN_ANOTHER_VOCABULARY", default=False)
_GENERATORS = ("AssistedCandidateGeneratorDifferentTokenizers", "UniversalSpeculativeDecodingGenerator")


def _get_candidates(original: Callable[..., Any]) -> Callable[..., Any]:
    def changed(self, *args, **kwargs):
        token = IN_ANOTHER_VOCABULARY.set(True)
        try:
            return original(self, *args, **kwargs)
        finally:
            IN_ANOTHER_VOCABULARY.reset(token)

    return changed


Patches().make(
    (getattr(candidate_generator, name), "get_candidates", _get_candidates)
    for name in _GENERATORS
    if hasattr(candidate_generator, name)  # a transformers without them has no such assistants
)
