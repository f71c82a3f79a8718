"""Continuous batching: the penalty reads each request's own history, with settings, policy and ladder per request.

An ordinary processor is handed only the last token of each request there. This is the interface made for it.
"""

from __future__ import annotations

import copy
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import ContinuousBatchingConfig
from transformers.generation.continuous_batching import cb_logits_processors as continuous
from transformers.generation.continuous_batching.continuous_api import ContinuousBatchingManager

from lz_penalty.config import LZPenaltyConfig
from lz_penalty.engines._special_tokens import exempting
from lz_penalty.engines.transformers._following import Followed, follow, tokens_of
from lz_penalty.engines.transformers._policy import force, needs_sections, with_exempt
from lz_penalty.engines.transformers._processor import LZPenaltyLogitsProcessor
from lz_penalty.errors import LZPenaltyError
from lz_penalty.ops import apply_lz_penalty_
from lz_penalty.policy import Asked, RequestPolicy, settings_from_request

__all__ = ["OFF", "OF_THIS_REQUEST", "ContinuousLZPenalty", "exact", "penalty_of", "settings_of_request"]

OFF = LZPenaltyConfig(strength=0)

# What the HTTP request being handled asks for: `transformers serve` has no other way to say it to `add_request`.
OF_THIS_REQUEST: ContextVar[Asked] = ContextVar("OF_THIS_REQUEST", default=None)


class Row(NamedTuple):
    """A request that gets a token in this step: its penalty, its history as far as it matters, and its policy."""

    config: LZPenaltyConfig
    history: list[int]
    followed: Followed | None


class ContinuousLZPenalty(continuous.ContinuousBatchingLogitsProcessor):
    """The processor's form in continuous batching; a request's `lz_config` replaces the default settings."""

    def __init__(self, processor: LZPenaltyLogitsProcessor) -> None:
        self.supported_kwargs = {"lz_config": object}
        self.ignored_kwargs = ()
        self.tokenizer = processor.tokenizer
        self.special = processor.special
        self.asked: LZPenaltyConfig | RequestPolicy = getattr(processor, "asked", processor.config)
        self.rows: list[Row] = []

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        """Nothing travels in the shared tensor."""
        int32_tensor.zero_()

    def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> torch.Tensor:
        """Collect the settings and the history of every request that gets a token in this step."""
        self.rows = [self._row(request.state) for request in requests_with_new_token]
        return torch.zeros(len(self.rows), dtype=torch.int32)

    def _row(self, state: Any) -> Row:
        asked = state.logit_processor_kwargs.get("lz_config", self.asked)
        if not isinstance(asked, RequestPolicy):
            return Row(asked, _history(state, asked) if asked.strength else [], None)
        _check_complete(state)
        followed = follow(state, asked, self.tokenizer)
        config = asked.policy.configs[followed.tracker.section] or OFF
        return Row(config, _history(state, config) if config.strength else [], followed)

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
            if row.followed is None:
                continue
            if row.followed.asked.shadow:
                row.followed.count(scores[i], penalised[i])
                if penalised is not scores:
                    penalised[i] = scores[i]
            elif row.followed.tracker.forced is not None:
                penalised = scores.clone() if penalised is scores else penalised
                force(penalised, i, row.followed.tracker.forced)
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
            starts=torch.zeros(rows, dtype=torch.int64, device=scores.device),  # prompts left out are gone already
        )


def _check_complete(state: Any) -> int:
    """How many tokens the request has; an error if the last of them is not known."""
    count = len(state.initial_tokens) + len(state.generated_tokens)
    if state.position_offset != count:
        raise LZPenaltyError(
            "asynchronous batching prepares a step before the last token is known, so the LZ penalty would be one "
            "token late: use ContinuousBatchingConfig(use_async_batching=False)."
        )
    return count


def _history(state: Any, config: LZPenaltyConfig) -> list[int]:
    """The last tokens of a request, as many as can matter."""
    count = _check_complete(state)
    tokens, prompt = tokens_of(state)
    reach = max(config.window_size + config.buffer_size, config.loop_window if config.escalation else 0)
    return tokens[max(0 if config.include_prompt else prompt, count - reach) :]


def exact(config: ContinuousBatchingConfig | None) -> ContinuousBatchingConfig:
    """The batching settings under which the penalty sees every token; an error where they contradict the given ones."""
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
    """The penalty in a manager, if it has one."""
    found = (one for one in manager.logit_processor.logits_processor if isinstance(one, ContinuousLZPenalty))
    return next(found, None)


def settings_of_request(manager: ContinuousBatchingManager, given: dict[str, Any]) -> dict[str, Any]:
    """`lz_config` for a request with these `lz_*` fields, with the special tokens of the manager exempt."""
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
    if isinstance(asked, LZPenaltyConfig):
        return {"lz_config": exempting(asked, penalty.special)}
    if needs_sections(asked) and penalty.tokenizer is None:
        raise LZPenaltyError(
            f"{', '.join(given)}: sections are found by the tokenizer's markers, and this manager knows none. Set "
            "model.lz_tokenizer = tokenizer before it is made."
        )
    return {"lz_config": replace(asked, policy=with_exempt(asked.policy, penalty.special))}


# Part of what our own class is in continuous batching, with or without `enable()`: nobody else's processor is affected.
continuous.CLASSIC_TO_CB_PROCESSORS_MAP[LZPenaltyLogitsProcessor] = ContinuousLZPenalty
