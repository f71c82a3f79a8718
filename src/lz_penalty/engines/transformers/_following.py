"""What continuous batching keeps of a request with a policy: its tracker, and the counts of shadow mode.

It hangs on the engine's own state of the request, and goes when that goes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from transformers.generation.continuous_batching.requests import RequestState, RequestStatus

from lz_penalty.engines.transformers._patching import Change
from lz_penalty.engines.transformers._policy import Outcome, outcome_of, sections_of
from lz_penalty.policy import RequestPolicy, Tracker, counters

__all__ = ["CHANGES", "Followed", "follow", "note_stop", "tokens_of", "was_stopped"]

_NAME = "lz_followed"  # attribute of a `RequestState`
_MAX_NOTED = 4_096
_noted: dict[str, None] = {}  # ids of requests that were stopped and not asked for yet, the oldest first


class Followed:
    """A request's policy and tracker. In a fork of the request, both go on by themselves."""

    def __init__(self, asked: RequestPolicy, tracker: Tracker) -> None:
        self.asked = asked
        self.tracker = tracker
        self.steps = 0
        self.differs: torch.Tensor | None = None

    def count(self, scores: torch.Tensor, penalised: torch.Tensor) -> None:
        """Shadow mode: would the most likely token have been another? Nothing is waited for."""
        differs = (scores.argmax() != penalised.argmax()).long()
        self.differs = differs if self.differs is None else self.differs + differs
        self.steps += 1

    def outcome(self) -> Outcome:
        """What became of the request."""
        changed = 0 if self.differs is None else int(self.differs)
        return outcome_of(self.tracker, lz_shadow_steps=self.steps, lz_shadow_changed=changed)


def follow(state: Any, asked: RequestPolicy, tokenizer: Any) -> Followed:
    """What is known of a request; read from its tokens where nothing is."""
    followed = getattr(state, _NAME, None)
    if followed is None:
        tokens, prompt = tokens_of(state)
        followed = Followed(asked, Tracker(asked, *sections_of(tokenizer), tokens[:prompt]))
        for token in tokens[prompt:]:
            followed.tracker.push(token)
        setattr(state, _NAME, followed)
    return followed


def tokens_of(state: Any) -> tuple[list[int], int]:
    """All tokens of a request, and how many of them are its prompt: evicted requests carry their output as prompt."""
    tokens = state.initial_tokens + state.generated_tokens
    return tokens, state._true_initial_tokens or len(state.initial_tokens)


def note_stop(request_id: str | None) -> None:
    """Remember that a request of `transformers serve` was stopped."""
    if request_id is not None:
        _noted[request_id] = None
        if len(_noted) > _MAX_NOTED:
            del _noted[next(iter(_noted))]


def was_stopped(request_id: str) -> bool:
    """Whether a request was stopped; asked once."""
    return _noted.pop(request_id, False) is None


# ---------------------------------------------------------------- the engine


def _update_and_check_completion(original: Callable[..., Any]) -> Callable[..., Any]:
    def changed(self, token_id, logprob):
        before = len(self.generated_tokens)
        finished = original(self, token_id, logprob)
        followed = getattr(self, _NAME, None)
        if followed is None:
            return finished
        if len(self.generated_tokens) > before and token_id not in self._eos_token_ids:
            followed.tracker.push(token_id)
        if followed.tracker.stopped is not None and not finished:
            self.status, finished = RequestStatus.FINISHED, True
            note_stop(self.request_id)
        return finished

    return changed


def _to_generation_output(original: Callable[..., Any]) -> Callable[..., Any]:
    def changed(self):
        output = original(self)
        followed = getattr(self, _NAME, None)
        if followed is not None and output.is_finished():
            output.lz_outcome = followed.outcome()
            counters.add(output.lz_outcome.counts)
        return output

    return changed


def _create_equivalent_initial_request(original: Callable[..., Any]) -> Callable[..., Any]:
    def changed(self):
        state = original(self)
        if hasattr(self, _NAME):
            setattr(state, _NAME, copy.deepcopy(getattr(self, _NAME)))
        return state

    return changed


CHANGES: tuple[Change, ...] = (
    (RequestState, "update_and_check_completion", _update_and_check_completion),
    (RequestState, "to_generation_output", _to_generation_output),
    (RequestState, "create_equivalent_initial_request", _create_equivalent_initial_request),
)
