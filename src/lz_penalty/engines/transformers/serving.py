"""`transformers serve`: requests with `lz_*` fields, in chat completions, completions and responses.

    python -m lz_penalty.engines.transformers serve MODEL ...

A bad field is answered with status 400 and its name. Nothing is changed for requests without such fields, except
that continuous batching runs without asynchronous batching and CUDA graphs: a request could not be exact otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers.cli.serving.utils import BaseHandler, GenerationState

from lz_penalty.config import LZPenaltyConfig
from lz_penalty.engines.transformers import continuous
from lz_penalty.engines.transformers.settings import all_fields, lz_fields
from lz_penalty.errors import LZPenaltyError

__all__ = ["CHANGES"]


def _settings(given: dict[str, Any], default: LZPenaltyConfig | None) -> LZPenaltyConfig | None:
    """`LZPenaltyConfig.from_request`, with the error that a client gets."""
    from fastapi import HTTPException

    try:
        return LZPenaltyConfig.from_request(given, default)
    except LZPenaltyError as error:
        raise HTTPException(status_code=400, detail=str(error)) from None


def _validate_request(original: Callable[..., Any]) -> Callable[..., Any]:
    def changed(self, body):
        _settings(lz_fields(body), LZPenaltyConfig())  # the default is known only when the model is
        return original(self, {name: value for name, value in body.items() if not name.startswith("lz_")})

    return changed


def _resolve_model(original: Callable[..., Any]) -> Callable[..., Any]:
    def changed(self, body):
        model_id, model, processor = original(self, body)
        model.lz_tokenizer = processor  # its special tokens are exempt
        return model_id, model, processor

    return changed


def _build_generation_config(original: Callable[..., Any]) -> Callable[..., Any]:
    def changed(self, body, model_generation_config, use_cb=False):
        generation_config = original(self, body, model_generation_config, use_cb=use_cb)
        server = _settings(lz_fields(vars(model_generation_config)), None)
        asked = _settings(lz_fields(body), _settings(lz_fields(vars(generation_config)), server))
        if use_cb:  # all requests share the first one's generation config
            continuous.OF_THIS_REQUEST.set(asked or continuous.OFF)
            asked = server
        if use_cb or asked != server:
            vars(generation_config).update(all_fields(asked))
        return generation_config

    return changed


def _generation_state(original: Callable[..., Any]) -> Callable[..., Any]:
    def changed(self, continuous_batching=False, compile=False, cb_config=None):
        return original(
            self, continuous_batching, compile, continuous.exact(cb_config) if continuous_batching else None
        )

    return changed


CHANGES: tuple[tuple[type, str, Callable[..., Any]], ...] = (
    (BaseHandler, "_validate_request", _validate_request),
    (BaseHandler, "_resolve_model", _resolve_model),
    (BaseHandler, "_build_generation_config", _build_generation_config),
    (GenerationState, "__init__", _generation_state),
)
