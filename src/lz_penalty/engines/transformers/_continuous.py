"""Continuous batching: the penalty reads each request's own history, with settings, policy and ladder per request.

An ordinary processor gets only the last token of each request there. This module uses the interface that transformers has for
processors that need more. The `Generation` of a request with a policy is an attribute of the engine's `RequestState`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import ContinuousBatchingConfig
from transformers.generation.continuous_batching import cb_logits_processors as continuous
from transformers.generation.continuous_batching.continuous_api import ContinuousBatchingManager
from transformers.generation.continuous_batching.requests import RequestState, RequestStatus

from lz_penalty.config import LZPenaltyConfig
from lz_penalty.engines._device import force_, moves_the_choice
from lz_penalty.engines._generation import NO_SECTIONS, Generation, Reading, count_loops
from lz_penalty.engines._requests import reach_of
from lz_penalty.engines._special_tokens import exempting
from lz_penalty.engines.server import server_settings
from lz_penalty.engines.transformers._patching import Change
from lz_penalty.engines.transformers._policy import Outcome, needs_sections, reading_for, until
from lz_penalty.engines.transformers._processor import LZPenaltyLogitsProcessor
from lz_penalty.errors import LZPenaltyError
from lz_penalty.ops import apply_lz_penalty_
from lz_penalty.policy import Asked, RequestPolicy, settings_from_request

__all__ = [
    "CHANGES",
    "OFF",
    "OF_THIS_REQUEST",
    "ContinuousLZPenalty",
    "exact",
    "note_stop",
    "penalty_of",
    "settings_of_request",
    "was_stopped",
]

OFF = LZPenaltyConfig(strength=0)
_GENERATION = "lz_generation"  # attribute of a `RequestState`
_ASKED = "lz_asked"  # attribute of a `RequestState`: the settings of its last step
_MAX_NOTED = 4_096
_noted: dict[str, None] = {}  # ids of requests that were stopped and not asked for yet, the oldest first

# The settings of the HTTP request that is handled: `transformers serve` has no other way to pass them to `add_request`.
OF_THIS_REQUEST: ContextVar[Asked] = ContextVar("OF_THIS_REQUEST", default=None)


class Row(NamedTuple):
    """A request that gets a token in this step: its penalty, the tokens that matter, and its generation if it has one."""

    config: LZPenaltyConfig
    history: list[int]
    generation: Generation | None


class ContinuousLZPenalty(continuous.ContinuousBatchingLogitsProcessor):
    """The processor in continuous batching. A request's `lz_config` replaces the default settings."""

    def __init__(self, processor: LZPenaltyLogitsProcessor) -> None:
        self.supported_kwargs = {"lz_config": object}
        self.ignored_kwargs = ()
        self.tokenizer = processor.tokenizer
        self.special = processor.special
        self.asked: LZPenaltyConfig | RequestPolicy = getattr(processor, "asked", processor.config)
        self.rows: list[Row] = []

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        """Fill the shared tensor with zeros: it is not used."""
        int32_tensor.zero_()

    def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> torch.Tensor:
        """Collect the settings and the history of every request that gets a token in this step."""
        self.rows = [self._row(request.state) for request in requests_with_new_token]
        return torch.zeros(len(self.rows), dtype=torch.int32)

    def _row(self, state: Any) -> Row:
        asked = state.logit_processor_kwargs.get("lz_config", self.asked)
        setattr(state, _ASKED, asked)
        if not isinstance(asked, RequestPolicy):
            return Row(asked, _history(state, asked) if asked.strength else [], None)
        _check_complete(state)
        generation = self._generation(state, asked)
        config = asked.policy.configs[generation.section] or OFF
        return Row(config, _history(state, config) if config.strength else [], generation)

    def _generation(self, state: Any, asked: RequestPolicy) -> Generation:
        """Return the generation of a request; make it at its first step."""
        generation = getattr(state, _GENERATION, None)
        if generation is None:
            tokens, prompt = _tokens(state)
            generation = Generation(self.reading(asked), asked, tokens[:prompt])
            generation.extend(tokens[prompt:])
            setattr(state, _GENERATION, generation)
        return generation

    def reading(self, asked: RequestPolicy) -> Reading:
        """Return how the texts of a request are read; without sections if nothing depends on them.

        Raises:
            LZPenaltyError: the tokenizer cannot be read.
        """
        if not needs_sections(asked):
            return NO_SECTIONS
        try:
            return reading_for(self.tokenizer)
        except LZPenaltyError:
            raise
        except Exception as error:  # classes of tokenizers are many
            raise LZPenaltyError(
                f"lz_policy: this model's tokenizer cannot be read ({type(error).__name__}: {error}). Use lz_preset and its "
                "fields alone."
            ) from error

    @torch.compiler.disable  # the histories are data, not constants of a graph
    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        """Return penalised scores `[rows, vocab]`; rows beyond the requests are padding."""
        if scores.is_cuda and torch.cuda.is_current_stream_capturing():
            raise LZPenaltyError(
                "a CUDA graph of continuous batching would keep the histories of the step it was captured in: use "
                "ContinuousBatchingConfig(use_cuda_graph=False)."
            )
        penalised = scores
        if any(row.config.strength for row in self.rows):
            penalised = scores.clone()
            self._penalise(penalised[: len(self.rows)])
        for i, row in enumerate(self.rows):
            if row.generation is None:
                continue
            if row.generation.shadow:
                row.generation.note(moves_the_choice(scores[i : i + 1], penalised[i : i + 1]), 0)
                if penalised is not scores:
                    penalised[i] = scores[i]
            elif row.generation.forced is not None:
                penalised = scores.clone() if penalised is scores else penalised
                force_(penalised, i, row.generation.forced)
        return penalised

    def _penalise(self, scores: torch.Tensor) -> None:
        rows = len(self.rows)
        lengths = np.array([len(row.history) for row in self.rows])
        tokens = np.zeros((rows, lengths.max()), dtype=np.int64)
        for i, row in enumerate(self.rows):
            tokens[i, : len(row.history)] = row.history
        apply_lz_penalty_(
            scores,
            torch.from_numpy(tokens).to(scores.device),
            torch.from_numpy(lengths).to(scores.device),
            config=[row.config for row in self.rows],
            starts=torch.zeros(
                rows, dtype=torch.int64, device=scores.device
            ),  # the histories have no prompts to leave out
        )


def _check_complete(state: Any) -> int:
    """Return how many tokens the request has; raise if the last of them is not known."""
    count = len(state.initial_tokens) + len(state.generated_tokens)
    if state.position_offset != count:
        raise LZPenaltyError(
            "asynchronous batching prepares a step before the last token is known, so the LZ penalty would be one "
            "token late: use ContinuousBatchingConfig(use_async_batching=False)."
        )
    return count


def _history(state: Any, config: LZPenaltyConfig) -> list[int]:
    """Return the last tokens of a request, as many as can matter."""
    count = _check_complete(state)
    tokens, prompt = _tokens(state)
    return tokens[max(0 if config.include_prompt else prompt, count - reach_of(config)) :]


def _tokens(state: Any) -> tuple[list[int], int]:
    """Return all tokens of a request, and the length of its prompt. An evicted request has its output in its prompt."""
    tokens = state.initial_tokens + state.generated_tokens
    return tokens, state._true_initial_tokens or len(state.initial_tokens)


def exact(config: ContinuousBatchingConfig | None) -> ContinuousBatchingConfig:
    """Return batching settings under which the penalty sees every token; raise if the given ones do not allow that."""
    config = ContinuousBatchingConfig() if config is None else copy.copy(config)
    for name in ("use_async_batching", "use_cuda_graph"):
        given = getattr(config, name)
        if any(given) if isinstance(given, tuple) else given:
            raise LZPenaltyError(
                f"{name} = {given}: the LZ penalty needs each token on the host before the next step is prepared. Leave "
                f"{name} out, or set it to False."
            )
    config.per_request_processors, config.use_async_batching, config.use_cuda_graph = True, False, False
    return config


def penalty_of(manager: ContinuousBatchingManager) -> ContinuousLZPenalty | None:
    """Return the penalty of a manager, if it has one."""
    found = (one for one in manager.logit_processor.logits_processor if isinstance(one, ContinuousLZPenalty))
    return next(found, None)


def settings_of_request(manager: ContinuousBatchingManager, given: dict[str, Any]) -> dict[str, Any]:
    """Return `lz_config` for a request with these `lz_*` fields, with the special tokens of the manager exempt."""
    penalty = penalty_of(manager)
    default: Asked = None if penalty is None else penalty.asked
    if isinstance(default, LZPenaltyConfig) and not default.strength:
        default = None
    asked = settings_from_request(given, default) or OFF if given else OF_THIS_REQUEST.get()
    if asked is None:
        return {}
    if penalty is None:
        raise LZPenaltyError(
            f"{', '.join(given) or 'lz_* fields'}: this manager was made without the LZ penalty. Make it with lz_penalty "
            "in its generation config (0: off unless a request asks for it)."
        )
    if isinstance(asked, RequestPolicy) and needs_sections(asked) and penalty.tokenizer is None:
        raise LZPenaltyError(
            f"{', '.join(given)}: sections are found by the tokenizer's markers, and this manager knows none. Set "
            "model.lz_tokenizer = tokenizer before it is made."
        )
    if isinstance(asked, RequestPolicy):
        penalty.reading(asked)  # an error in the first step would end the manager, and with it all requests
    return {"lz_config": exempting(asked, penalty.special)}


# ---------------------------------------------------------------- changes to the engine


def note_stop(request_id: str | None) -> None:
    """Remember that a request of `transformers serve` was stopped."""
    if request_id is not None:
        _noted[request_id] = None
        if len(_noted) > _MAX_NOTED:
            del _noted[next(iter(_noted))]


def was_stopped(request_id: str) -> bool:
    """Return whether a request was stopped, and forget it."""
    return _noted.pop(request_id, False) is None


def _update_and_check_completion(original: Callable[..., Any]) -> Callable[..., Any]:
    def changed(self, token_id, logprob):
        before = len(self.generated_tokens)
        finished = original(self, token_id, logprob)
        generation = getattr(self, _GENERATION, None)
        if generation is None:
            return finished
        if len(self.generated_tokens) > before and token_id not in self._eos_token_ids:
            generation.push(token_id)
        if generation.stopped is not None and not finished:
            self.status, finished = RequestStatus.FINISHED, True
            note_stop(self.request_id)
        return finished

    return changed


def _to_generation_output(original: Callable[..., Any]) -> Callable[..., Any]:
    def changed(self):
        output = original(self)
        if output.is_finished():
            generation = getattr(self, _GENERATION, None)
            if generation is not None:
                output.lz_outcome = Outcome(generation.stopped, generation.ended_thinking, generation.totals())
                generation.count()
            if server_settings().count_loops and _leaves_loops_uncounted(self):
                count_loops(until(output.generated_tokens, self._eos_token_ids))
        return output

    return changed


def _leaves_loops_uncounted(state: Any) -> bool:
    """Return whether a request is penalised without a policy that counts loops itself."""
    asked = getattr(state, _ASKED, None)
    return not asked.looks_for_runs if isinstance(asked, RequestPolicy) else asked is not None and bool(asked.strength)


def _create_equivalent_initial_request(original: Callable[..., Any]) -> Callable[..., Any]:
    def changed(self):
        state = original(self)
        if hasattr(self, _GENERATION):
            setattr(state, _GENERATION, getattr(self, _GENERATION).copy())
        return state

    return changed


CHANGES: tuple[Change, ...] = (
    (RequestState, "update_and_check_completion", _update_and_check_completion),
    (RequestState, "to_generation_output", _to_generation_output),
    (RequestState, "create_equivalent_initial_request", _create_equivalent_initial_request),
)

# Tells continuous batching what to make of our own processor, with or without `enable()`. Others are not affected.
continuous.CLASSIC_TO_CB_PROCESSORS_MAP[LZPenaltyLogitsProcessor] = ContinuousLZPenalty
