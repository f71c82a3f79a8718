"""`transformers serve`: requests with `lz_*` fields, in chat completions, completions and responses.

    python -m lz_penalty.engines.transformers serve MODEL ...

A bad field is answered with status 400 and its name. The default for all requests is that of the model's generation
config, else that of the server (`engines.server`), whose caps hold for every request. Without any of these nothing
changes, except that continuous batching runs without asynchronous batching and CUDA graphs: it could not be exact
otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from transformers.cli.serving.utils import BaseHandler, GenerationState

from lz_penalty.config import LZPenaltyConfig
from lz_penalty.engines.server import server_settings
from lz_penalty.engines.transformers import continuous
from lz_penalty.engines.transformers.settings import all_fields, lz_fields
from lz_penalty.errors import LZPenaltyError

__all__ = ["CHANGES", "special_tokens_of"]


@contextmanager
def _told_to_the_client() -> Iterator[None]:
    from fastapi import HTTPException

    try:
        yield
    except LZPenaltyError as error:
        raise HTTPException(status_code=400, detail=str(error)) from None


def _validate_request(original: Callable[..., Any]) -> Callable[..., Any]:
    def changed(self, body):
        with _told_to_the_client():
            LZPenaltyConfig.from_request(lz_fields(body), LZPenaltyConfig())  # before a model is loaded for it
        return original(self, {name: value for name, value in body.items() if not name.startswith("lz_")})

    return changed


def _resolve_model(original: Callable[..., Any]) -> Callable[..., Any]:
    def changed(self, body):
        model_id, model, processor = original(self, body)
        model.lz_tokenizer = processor
        return model_id, model, processor

    return changed


def _build_generation_config(original: Callable[..., Any]) -> Callable[..., Any]:
    def changed(self, body, model_generation_config, use_cb=False):
        generation_config = original(self, body, model_generation_config, use_cb=use_cb)
        with _told_to_the_client():
            server = server_settings()
            default = LZPenaltyConfig.from_request(lz_fields(vars(model_generation_config)), server.config_of({}))
            within = LZPenaltyConfig.from_request(lz_fields(vars(generation_config)), default)
            asked = replace(server, default=within).config_of(lz_fields(body))
        if use_cb:  # all requests share the first one's generation config
            continuous.OF_THIS_REQUEST.set(asked or continuous.OFF)
            asked = default
        vars(generation_config).update(all_fields(asked))
        return generation_config

    return changed


def special_tokens_of(model: Any) -> dict[str, Any]:
    """What the processor of a model that is served must know of special tokens."""
    if not hasattr(model, "lz_tokenizer"):
        return {}
    penalise = server_settings().penalise_special_tokens
    return {"tokenizer": model.lz_tokenizer, "penalise_special_tokens": penalise}


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
