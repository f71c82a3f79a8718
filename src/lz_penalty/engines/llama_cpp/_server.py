"""`lz-penalty serve-llama`: llama-cpp-python's OpenAI-compatible server, with `lz_*` fields per request.

The stock server ignores unknown fields. So a middleware (`_guard`) reads the `lz_*` fields first and refuses invalid
ones with status 400. The penalty is added where the stock server prepares a call of the model.
"""

from __future__ import annotations

import ipaddress
import logging
import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import llama_cpp
from llama_cpp.server import app as stock
from llama_cpp.server.settings import ModelSettings
from llama_cpp.server.settings import ServerSettings as StockSettings
from pydantic import ValidationError
from pydantic_core import SchemaValidator
from starlette.middleware import Middleware

from lz_penalty._http import Connection
from lz_penalty.engines._stock_server import check_calls
from lz_penalty.engines.llama_cpp._guard import CONFIG, MAX_CONNECTIONS, Check, Guard, checked_key
from lz_penalty.engines.llama_cpp._options import Options, ServedModel, first_errors
from lz_penalty.engines.llama_cpp._processor import LZPenaltyProcessors
from lz_penalty.engines.server import server_settings
from lz_penalty.errors import LZPenaltyError, bad_value, show

__all__ = ["create_app", "serve"]

_LOGGER = logging.getLogger("lz_penalty")
_process = SimpleNamespace(with_penalty=None)  # our replacement of the stock server's `prepare_request_resources`
_BODIES = {  # of the stock server, by the end of the path
    "/chat/completions": stock.CreateChatCompletionRequest,
    "/completions": stock.CreateCompletionRequest,
    "/embeddings": stock.CreateEmbeddingRequest,
    "/detokenize": stock.DetokenizeInputRequest,
    "/tokenize": stock.TokenizeInputRequest,
    "/tokenize/count": stock.TokenizeInputRequest,
}
_CALLS = dict.fromkeys(  # what `_penalise_requests` replaces, in all that answers completions
    ("create_completion", "create_chat_completion", "get_event_publisher"), ("prepare_request_resources",)
)
_REPLACES = "CONFIG_FILE"  # the variable with a file that replaces all settings, including the key


def serve(options: Options) -> None:
    """Serve models until interrupted. An address that others can reach needs an API key."""
    import uvicorn

    server = options.server
    if not server.api_key and not _is_loopback(server.host):
        raise bad_value(
            "host", server.host, "a loopback address such as 127.0.0.1 without an API key", "Set an API key."
        )
    names = {name.upper() for kind in (StockSettings, ModelSettings) for name in kind.model_fields}
    ignored = sorted(name for name in os.environ if name.upper() in names)
    if ignored:
        _LOGGER.warning("ignored environment variables, which only the stock server reads: %s", ", ".join(ignored))
    uvicorn.run(
        create_app(server, options.models),
        host=server.host,
        port=server.port,
        ssl_keyfile=server.ssl_keyfile,
        ssl_certfile=server.ssl_certfile,
        loop="asyncio",
        http=Connection,
        ws="none",
        workers=1,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=5,
    )


def create_app(server: StockSettings, models: Sequence[ServedModel]) -> Any:
    """Return the stock app with the penalty; a request without the name of a model goes to the first one."""
    if _REPLACES in os.environ:
        raise LZPenaltyError(
            f"{_REPLACES} = {show(os.environ[_REPLACES])}: llama-cpp-python would replace all settings with this file's, "
            f"including the API key. Start without this variable: env -u {_REPLACES} lz-penalty serve-llama ..."
        )
    key = checked_key(server.api_key)
    for model in models:
        drafts = model.settings.draft_model
        if drafts is not None:
            raise bad_value("draft_model", drafts, "unset: with drafts the penalty would be wrong")
    check_calls(stock, _CALLS, "llama-cpp-python", llama_cpp.__version__, "0.3.36")
    app = stock.create_app(server_settings=server, model_settings=[model.settings for model in models])
    _check_effective(server, [model.settings for model in models])
    guard = Middleware(
        Guard,
        operator=models[0].operator,
        key=key,
        public=(app.docs_url, app.redoc_url, app.openapi_url, app.swagger_ui_oauth2_redirect_url),
        check=_check_of_bodies(),
        by_model={model.settings.model_alias: model.operator for model in models},
    )
    app.user_middleware.append(guard)  # inside the stock middleware, whose headers allow browsers to read a refusal too
    _penalise_requests()
    return app


def _check_of_bodies() -> Check:
    """Return the stock server's check of a body, changed to stop at the first error in a list.

    The stock server would collect, print and send all errors with their inputs: tens of thousands for a list with
    thousands of items.
    """
    validators = {}
    for end, body in _BODIES.items():
        whole: Any = body.__pydantic_core_schema__  # for the model itself, pydantic would use its unchanged validator
        validators[end] = SchemaValidator(_first_error_only(whole["schema"]), whole.get("config"))

    def check(path: str, fields: dict[str, Any]) -> None:
        validator = next((validator for end, validator in validators.items() if path.endswith(end)), None)
        try:
            if validator is not None:
                validator.validate_python(fields)
        except ValidationError as error:
            raise LZPenaltyError(f"the request's body is invalid for this path: {first_errors(error)}.") from None

    return check


def _first_error_only(schema: Any) -> Any:
    """Return a pydantic schema in which a list is not read further after its first error."""
    if isinstance(schema, list):
        return [_first_error_only(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {name: _first_error_only(value) for name, value in schema.items()}
    return changed | {"fail_fast": True} if schema.get("type") == "list" else changed


def _penalise_requests() -> None:
    """Wrap the stock server's preparation of a request, so that it adds the penalty; wrap it only once."""
    prepare = stock.prepare_request_resources
    if prepare is _process.with_penalty:
        return

    def with_penalty(body: Any, llama_proxy: Any, body_model: Any, kwargs: Any) -> Any:
        config = CONFIG.get()
        if config is not None:
            penalise_special = server_settings().penalise_special_tokens
            kwargs["logits_processor"] = LZPenaltyProcessors(
                llama_proxy(body_model), config, penalise_special_tokens=penalise_special
            )
            if "repeat_penalty" not in body.model_fields_set:
                kwargs["repeat_penalty"] = 1.0  # the stock server's default, 1.1, would be a second penalty
        return prepare(body, llama_proxy, body_model, kwargs)

    _process.with_penalty = stock.prepare_request_resources = with_penalty


def _check_effective(server: StockSettings, models: list[ModelSettings]) -> None:
    """Raise unless the stock server really uses this key and only these models."""
    used, proxy = next(stock.get_server_settings()), stock._llama_proxy
    if used.api_key != server.api_key or [proxy[alias] for alias in proxy] != [one.model_dump() for one in models]:
        raise LZPenaltyError(
            "llama-cpp-python's server would use another API key or model than the given one, so it is not started. "
            "Find out what changes its settings, such as an environment variable."
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
