"""`transformers serve`: requests with `lz_*` fields, in chat completions, completions and responses.

    python -m lz_penalty.engines.transformers serve MODEL ...

A bad field is answered with status 400 and its name. The default for all requests is that of the model's generation
config, else that of the server (`engines.server`), whose caps hold for every request. Without any of these nothing
changes, except that continuous batching runs without asynchronous batching and CUDA graphs, with which the penalty could not
be exact.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from transformers import GenerationConfig
from transformers.cli.serving.utils import BaseHandler, GenerationState

from lz_penalty.config import MAX_BUFFER, LZPenaltyConfig
from lz_penalty.engines.server import server_settings
from lz_penalty.engines.transformers import _continuous as continuous
from lz_penalty.engines.transformers._patching import Change
from lz_penalty.engines.transformers._settings import lz_fields, settle
from lz_penalty.errors import LZPenaltyError
from lz_penalty.policy import counters, settings_from_request

__all__ = ["CHANGES", "REQUEST_ID", "changes_of_handlers", "penalises_special_tokens"]

REQUEST_ID = "_lz_request_id"  # attribute of the generation config of a request
STOPPED = "repetition"  # the finish reason


@contextmanager
def _told_to_the_client() -> Iterator[None]:
    from fastapi import HTTPException

    try:
        yield
    except LZPenaltyError as error:
        counters.count_request("refused")
        raise HTTPException(status_code=400, detail=str(error)) from None


def _some_default(given: Mapping[str, Any]) -> LZPenaltyConfig:
    """Return a default for fields while the real one is not known. They are refused only if they are so with every default."""
    thresholds = [given.get(name, "none") for name in ("lz_gate_low", "lz_gate_high")]
    low, high = (0.0, 1.0) if thresholds.count("none") == 1 else (None, None)
    return LZPenaltyConfig(buffer_size=MAX_BUFFER, gate_low=low, gate_high=high)


def _validate_request(original: Callable[..., Any]) -> Callable[..., Any]:
    def changed(self, body):
        with _told_to_the_client():
            given = lz_fields(body)
            settings_from_request(given, _some_default(given))  # before a model is loaded for it
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
            default = settings_from_request(lz_fields(vars(model_generation_config)), server.default)
            within = settings_from_request(lz_fields(vars(generation_config)), default)
            asked = replace(server, default=within).settings_of(lz_fields(body))
        counters.count_request("none" if asked is None else "penalised")
        if use_cb:  # all requests share the first one's generation config
            continuous.OF_THIS_REQUEST.set(asked or continuous.OFF)
            asked = default
        settle(generation_config, asked)
        return generation_config

    return changed


def penalises_special_tokens(model: Any) -> bool:
    """Return whether the server's settings say so for this model, which it serves."""
    return hasattr(model, "lz_tokenizer") and server_settings().penalise_special_tokens


def _generation_state(original: Callable[..., Any]) -> Callable[..., Any]:
    def changed(self, continuous_batching=False, compile=False, cb_config=None):
        return original(
            self, continuous_batching, compile, continuous.exact(cb_config) if continuous_batching else None
        )

    return changed


# ---------------------------------------------------------------- the finish reason of what was stopped


def _streaming(original: Callable[..., Any]) -> Callable[..., Any]:
    def changed(self, request_id, *args, **kwargs):
        _name(request_id, args, kwargs)
        return original(self, request_id, *args, **kwargs)

    return changed


def _non_streaming(original: Callable[..., Any]) -> Callable[..., Any]:
    async def changed(self, request_id, *args, **kwargs):
        from fastapi.responses import JSONResponse

        _name(request_id, args, kwargs)
        answer = await original(self, request_id, *args, **kwargs)
        if not continuous.was_stopped(request_id):
            return answer
        return JSONResponse(_told(json.loads(answer.body)), media_type="application/json")

    return changed


def _name(request_id: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Write the request's id into its generation config."""
    for one in (*args, *kwargs.values()):
        if isinstance(one, GenerationConfig):
            setattr(one, REQUEST_ID, request_id)


def _build_chunk_sse(original: Callable[..., Any]) -> Callable[..., Any]:
    def changed(self, request_id="", *args, **kwargs):
        chunk = original(self, request_id, *args, **kwargs)
        if kwargs.get("finish_reason") != "stop" or not continuous.was_stopped(request_id):
            return chunk
        return self.chunk_to_sse(json.dumps(_told(json.loads(chunk.removeprefix("data: ")))))

    return changed


def _told(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer with the finish reason of one that was stopped for a repetition."""
    for choice in answer.get("choices", ()):
        if choice["finish_reason"] == "stop":
            choice["finish_reason"] = STOPPED
    if answer.get("object") == "response":
        answer |= {"status": "incomplete", "incomplete_details": {"reason": STOPPED}}
    return answer


CHANGES: tuple[Change, ...] = (
    (BaseHandler, "_validate_request", _validate_request),
    (BaseHandler, "_resolve_model", _resolve_model),
    (BaseHandler, "_build_generation_config", _build_generation_config),
    (GenerationState, "__init__", _generation_state),
)
_OF_HANDLERS = {
    "_streaming": _streaming,
    "_non_streaming": _non_streaming,
    "_build_chunk_sse": _build_chunk_sse,
}


def changes_of_handlers() -> list[Change]:
    """Return the changes to the handlers that are loaded. Their modules load slowly, when a server starts."""
    return [
        (handler, name, change)
        for handler in BaseHandler.__subclasses__()
        for name, change in _OF_HANDLERS.items()
        if name in vars(handler)
    ]
