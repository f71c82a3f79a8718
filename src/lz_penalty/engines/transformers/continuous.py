"""Continuous batching: the penalty reads each request's own history, with settings per request.

An ordinary processor is handed only the last token of each request there. This is the interface made for it.
"""

from __future__ import annotations

import copy
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from transformers import ContinuousBatchingConfig
from transformers.generation.continuous_batching import cb_logits_processors as continuous
from transformers.generation.continuous_batching.continuous_api import ContinuousBatchingManager

from lz_penalty.config import LZPenaltyConfig
from lz_penalty.engines.transformers.processor import LZPenaltyLogitsProcessor
from lz_penalty.errors import LZPenaltyError
from lz_penalty.ops import apply_lz_penalty_

__all__ = ["OF_THIS_REQUEST", "ContinuousLZPenalty", "exact", "penalty_of", "settings_of_request"]

OFF = LZPenaltyConfig(strength=0)

# What the HTTP request being handled asks for: `transformers serve` has no other way to say it to `add_request`.
OF_THIS_REQUEST: ContextVar[LZPenaltyConfig | None] = ContextVar("OF_THIS_REQUEST", default=None)


class ContinuousLZPenalty(continuous.ContinuousBatchingLogitsProcessor):
    """The processor's form in continuous batching; a request's `lz_config` replaces the default settings."""

    def __init__(self, processor: LZPenaltyLogitsProcessor) -> None:
        if hasattr(processor, "policy"):
            raise LZPenaltyError("continuous batching takes no policy yet: use one LZPenaltyConfig for all sections.")
        self.supported_kwargs = {"lz_config": LZPenaltyConfig}
        self.ignored_kwargs = ()
        self.config = processor.config
        self.rows: list[tuple[LZPenaltyConfig, list[int]]] = []

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        """Nothing travels in the shared tensor."""
        int32_tensor.zero_()

    def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> torch.Tensor:
        """Collect the settings and the history of every request that gets a token in this step."""
        self.rows = []
        for request in requests_with_new_token:
            config = request.state.logit_processor_kwargs.get("lz_config", self.config)
            self.rows.append((config, _history(request.state, config) if config.strength else []))
        return torch.zeros(len(self.rows), dtype=torch.int32)

    @torch.compiler.disable  # the histories are data, not constants of a graph
    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        """Return penalised scores `[rows, vocab]`; rows beyond the requests are padding."""
        if scores.is_cuda and torch.cuda.is_current_stream_capturing():
            raise LZPenaltyError(
                "a CUDA graph of continuous batching would keep the histories of the step it was captured in: use "
                "ContinuousBatchingConfig(use_cuda_graph=False)."
            )
        if not any(config.strength for config, _ in self.rows):
            return scores
        rows = len(self.rows)
        lengths = np.array([len(history) for _, history in self.rows])
        tokens = np.zeros((rows, lengths.max()), dtype=np.int64)
        for row, (_, history) in enumerate(self.rows):
            tokens[row, : len(history)] = history
        penalised = scores.clone()
        apply_lz_penalty_(
            penalised[:rows],
            torch.from_numpy(tokens).to(scores.device),
            torch.from_numpy(lengths).to(scores.device),
            config=[config for config, _ in self.rows],
            starts=torch.zeros(rows, dtype=torch.int64, device=scores.device),  # prompts left out are gone already
        )
        return penalised


def _history(state: Any, config: LZPenaltyConfig) -> list[int]:
    """The last tokens of a request, as many as can matter."""
    tokens = state.initial_tokens + state.generated_tokens
    if state.position_offset != len(tokens):
        raise LZPenaltyError(
            "asynchronous batching prepares a step before the last token is known, so the LZ penalty would be one "
            "token late: use ContinuousBatchingConfig(use_async_batching=False)."
        )
    prompt = state._true_initial_tokens or len(state.initial_tokens)  # evicted requests carry their output as prompt
    reach = max(config.window_size + config.buffer_size, config.loop_window if config.escalation else 0)
    return tokens[max(0 if config.include_prompt else prompt, len(tokens) - reach) :]


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


def settings_of_request(manager: ContinuousBatchingManager, given: dict[str, Any]) -> dict[str, LZPenaltyConfig]:
    """`lz_config` for a request with these `lz_*` fields, with the exempt tokens of the manager's default."""
    penalty = penalty_of(manager)
    default = penalty.config if penalty and penalty.config.strength else None
    config = LZPenaltyConfig.from_request(given, default) or OFF if given else OF_THIS_REQUEST.get()
    if config is None:
        return {}
    if penalty is None:
        raise LZPenaltyError(
            f"{', '.join(given) or 'lz_* fields'}: this manager was made without the LZ penalty. Make it with lz_penalty "
            "in its generation config (0: off unless a request asks for it)."
        )
    return {"lz_config": replace(config, exempt_token_ids=(*config.exempt_token_ids, *penalty.config.exempt_token_ids))}


continuous.CLASSIC_TO_CB_PROCESSORS_MAP[LZPenaltyLogitsProcessor] = ContinuousLZPenalty
