"""llama-cpp-python's own OpenAI-compatible server, with `lz_*` fields per request: `lz-penalty serve-llama`.

The stock server ignores fields that it does not know. Here a middleware reads the `lz_*` fields before it does, refuses bad
ones with 400, and leaves the settings to the place where the server prepares a call of the model.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp.server import app as stock
from llama_cpp.server.settings import ModelSettings
from llama_cpp.server.settings import ServerSettings as StockSettings

from lz_penalty.config import LZPenaltyConfig
from lz_penalty.engines.llama_cpp import LZPenaltyProcessors
from lz_penalty.engines.server import ServerSettings, server_settings
from lz_penalty.errors import BackendUnavailableError, LZPenaltyError, bad_value

__all__ = ["create_app", "serve"]

MAX_BODY = 16 * 1024 * 1024
_PENALISED = ("/completions", "/chat/completions")
_config: ContextVar[LZPenaltyConfig | None] = ContextVar("lz_penalty_config", default=None)


def serve(
    model: str, *, host: str = "127.0.0.1", port: int = 8000, api_key: str | None = None, n_ctx: int = 2048
) -> None:
    """Serve a GGUF file until interrupted.

    Args:
        model: the GGUF file.
        host: the address to listen on; one that others can reach needs an API key.
        port: the port.
        api_key: what a request must carry as `Authorization: Bearer KEY`.
        n_ctx: the context's length in tokens.
    """
    import uvicorn

    if not api_key and not _is_loopback(host):
        raise bad_value("host", host, "a loopback address such as 127.0.0.1 where there is no API key", "Set one.")
    app = create_app(
        StockSettings(host=host, port=port, api_key=api_key), ModelSettings(model=model, n_ctx=n_ctx, verbose=False)
    )
    uvicorn.run(app, host=host, port=port)


def create_app(server: StockSettings, model: ModelSettings) -> Any:
    """The stock app, with the penalty; its operator's settings come from LZ_PENALTY_SERVER (see `engines.server`)."""
    if model.draft_model is not None:
        raise bad_value("draft_model", model.draft_model, "unset: with drafts the penalty would be wrong")
    if not hasattr(stock, "prepare_request_resources"):
        raise BackendUnavailableError(
            f"llama-cpp-python {llama_cpp.__version__} has another server than 0.3.36, where the penalty finds no place: "
            "use the version that is known to work."
        )
    operator = server_settings().without_stop_token().without_policies()
    app = stock.create_app(server_settings=server, model_settings=[model])
    app.add_middleware(_ReadsFields, operator=operator)
    prepare = getattr(stock.prepare_request_resources, "__wrapped__", stock.prepare_request_resources)

    def with_penalty(body: Any, llama_proxy: Any, body_model: Any, kwargs: Any) -> Any:
        config = _config.get()
        if config is not None:
            llm = llama_proxy(body_model)
            kwargs["logits_processor"] = _OneRequest(
                llm, config, prompt_length=0, penalise_special_tokens=operator.penalise_special_tokens
            )
        return prepare(body, llama_proxy, body_model, kwargs)

    with_penalty.__wrapped__ = prepare  # type: ignore[attr-defined]
    stock.prepare_request_resources = with_penalty
    return app


class _OneRequest(LZPenaltyProcessors):
    """The processors of one request: the first call shows the prompt, so its length need not be known before."""

    _called = False

    def _apply(self, input_ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
        if not self._called:
            self._called = True
            self._start = 0 if self.config.include_prompt else len(input_ids)
        return super()._apply(input_ids, scores)


class _ReadsFields:
    """ASGI middleware: the `lz_*` fields of a request become a config; bad ones end it with 400."""

    def __init__(self, app: Any, operator: ServerSettings) -> None:
        self.app = app
        self.operator = operator

    async def __call__(self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or not scope["path"].endswith(_PENALISED):
            return await self.app(scope, receive, send)
        body, messages = b"", list[Any]()
        while not messages or (messages[-1]["type"] == "http.request" and messages[-1].get("more_body")):
            messages.append(await receive())
            body += messages[-1].get("body", b"")
            if len(body) > MAX_BODY:
                return await _refuse(send, 413, f"the request's body is longer than {MAX_BODY} bytes.")
        try:
            given = json.loads(body)
        except (ValueError, RecursionError):
            given = {}  # the server itself says what is wrong with it
        try:
            config = self.operator.config_of(given if isinstance(given, dict) else {})
        except LZPenaltyError as error:
            return await _refuse(send, 400, str(error))
        token = _config.set(config)
        try:
            await self.app(scope, _replayed(messages, receive), send)
        finally:
            _config.reset(token)


def _replayed(messages: list[Any], receive: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
    left = iter(messages)

    async def again() -> Any:
        for message in left:
            return message
        return await receive()

    return again


async def _refuse(send: Any, status: int, message: str) -> None:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
