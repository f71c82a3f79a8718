"""Limit what a client of `serve-llama` can do: check the key, and limit the size and time of requests.

The key is checked before the body is read. `lz_penalty._http` bounds the reading and parsing of the body. Needs neither
llama.cpp nor its server.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from lz_penalty._http import Receive, TooLongError, fields_of, read_body, refuse
from lz_penalty.config import LZPenaltyConfig
from lz_penalty.engines.server import ServerSettings
from lz_penalty.errors import LZPenaltyError

__all__ = ["CONFIG", "MAX_CONNECTIONS", "Check", "Guard", "checked_key"]

MAX_BODY = 1024 * 1024  # bytes; a prompt of 128k tokens needs about half of this
MAX_CONNECTIONS = 256
BODY_SECONDS = 30.0  # for the whole body
PENALISED = ("/completions", "/chat/completions")
CODEX = "/v1/engines/copilot-codex/completions"  # the stock server takes the model "copilot-codex" for this path
WITH_BODY = ("POST", "PUT", "PATCH")

# The settings of the request that is being handled.
CONFIG: ContextVar[LZPenaltyConfig | None] = ContextVar("lz_penalty_config", default=None)

Check = Callable[[str, dict[str, Any]], None]


class Guard:
    """ASGI middleware that refuses requests without the key, bodies that are too large, and invalid `lz_*` fields.

    Args:
        app: the app that handles the accepted requests.
        operator: the server's default and caps.
        key: the key that requests must have as `Authorization: Bearer KEY`, from `checked_key`; `None` for no key.
        public: paths that need no key. Their bodies are not read here.
        check: raises `LZPenaltyError` for fields that are invalid for a path, faster than the app; `None` for no check.
        by_model: other defaults and caps, by the name of the model that a request asks for.
    """

    def __init__(
        self,
        app: Any,
        operator: ServerSettings,
        key: bytes | None = None,
        public: Collection[str] = (),
        check: Check | None = None,
        by_model: Mapping[str, ServerSettings] = MappingProxyType({}),
    ) -> None:
        self.app = app
        self._operator = operator
        self._by_model = by_model
        self._key = key
        self._public = frozenset(public)
        self._check = check

    async def __call__(self, scope: Any, receive: Receive, send: Any) -> None:
        """Handle one request."""
        if scope["type"] != "http" or scope["path"] in self._public:
            return await self.app(scope, receive, send)
        if not self._has_key(scope["headers"]):
            return await refuse(send, 401, "Invalid API key. Send it as Authorization: Bearer KEY.", "invalid_api_key")
        try:
            body = await asyncio.wait_for(read_body(scope["headers"], receive, MAX_BODY), BODY_SECONDS)
            if body is None:
                return None  # the client has disconnected
            config = self._config(scope, body) if scope["method"] in WITH_BODY else None
        except asyncio.TimeoutError:
            return await refuse(send, 408, f"the request's body took longer than {BODY_SECONDS:g} s. Send it faster.")
        except _NotJSONError:
            return await refuse(
                send, 415, "the request's body must be JSON. Send it as Content-Type: application/json."
            )
        except TooLongError:
            return await refuse(send, 413, f"the request's body is longer than {MAX_BODY} bytes. Shorten it.")
        except LZPenaltyError as error:
            return await refuse(send, 400, str(error))
        token = CONFIG.set(config)
        try:
            await self.app(scope, _replayed(body, receive), send)
        finally:
            CONFIG.reset(token)

    def _config(self, scope: Any, body: bytes) -> LZPenaltyConfig | None:
        """Return the settings that a body asks for; raise if it is not a JSON object that is valid for this path."""
        if _media_type(scope["headers"]) != b"application/json":
            raise _NotJSONError
        fields, path = fields_of(body), scope["path"]
        config = None
        if scope["method"] == "POST" and path.endswith(PENALISED):
            config = self._operator_for(path, fields.get("model")).config_of(fields)
        elif any(name.startswith("lz_") for name in fields):
            raise LZPenaltyError(
                "lz_* fields have no effect on this path: they are for POST to /v1/completions and /v1/chat/completions. "
                "Leave them out."
            )
        if self._check is not None:
            self._check(path, fields)
        return config

    def _operator_for(self, path: str, model: Any) -> ServerSettings:
        """Return the default and caps for the model that the stock server will use."""
        name = CODEX.split("/")[3] if path == CODEX else model
        return self._by_model.get(name, self._operator) if isinstance(name, str) else self._operator

    def _has_key(self, headers: list[tuple[bytes, bytes]]) -> bool:
        """Return whether the request has the key. The time does not depend on how many of its characters are right."""
        if self._key is None:
            return True
        scheme, _, given = next((value for name, value in headers if name == b"authorization"), b"").partition(b" ")
        return hmac.compare_digest(given, self._key) and scheme.lower() == b"bearer"


def checked_key(key: str | None) -> bytes | None:
    """Return an API key as bytes; raise, without showing it, if an HTTP header cannot contain it."""
    if key is None:
        return None
    if not key or not all("!" <= character <= "~" for character in key):
        raise LZPenaltyError(
            "api_key: must be one or more ASCII letters, digits and signs without spaces, as in an HTTP header. Choose "
            "another key."
        )
    return key.encode()


class _NotJSONError(Exception):
    """The content type of the body is not JSON."""


def _media_type(headers: list[tuple[bytes, bytes]]) -> bytes:
    given = next((value for name, value in headers if name == b"content-type"), b"")
    return given.partition(b";")[0].strip().lower()


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` for the app that gives it the body again, and then further messages."""
    left = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Any:
        return left.pop() if left else await receive()

    return again
