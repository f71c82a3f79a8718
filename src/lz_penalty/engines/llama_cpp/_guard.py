"""What `serve-llama` lets a client do: who may ask, how much, for how long. Needs neither llama.cpp nor its server.

The key is checked before a body is read. A body is read in a bounded time, and parsed only if its size and structure
make that fast, because parsing blocks every other request.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Awaitable, Callable, Collection
from contextvars import ContextVar
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from lz_penalty.config import LZPenaltyConfig
from lz_penalty.engines.server import ServerSettings
from lz_penalty.errors import LZPenaltyError

__all__ = ["CONFIG", "MAX_CONNECTIONS", "Check", "Connection", "Guard", "checked_key", "fields_of"]

MAX_BODY = 1024 * 1024  # bytes; a prompt of 128k tokens has about half of it
MAX_MARKS = 131_072  # commas, opening brackets and backslashes of a body, wherever they are
MAX_VALUES = 6_144  # values of a body: commas and opening brackets outside of its strings, but not
MAX_INTEGERS = 33_792  # integers that follow each other in a list, such as 32k tokens: they are parsed fast
MAX_OUTSIDE = 320 * 1024  # bytes outside of strings, where there are more than MAX_VALUES values
MAX_FRACTIONS = 4_096  # full stops and letters e outside of strings: Python takes long for fractions with exponents
MAX_DIGITS = 64  # of a number: Python takes quadratic time for long integers
MAX_DEPTH = 64  # levels: the stock server fails where it parses what was just not too deep here
MAX_CONNECTIONS = 256
BODY_SECONDS = 30.0  # for the whole body
HEADER_SECONDS = 10.0  # for the headers of a request
MAX_READ = 4_096  # bytes that are parsed at once: h11 takes about 6 ms for so many in chunks of one byte
PENALISED = ("/completions", "/chat/completions")
WITH_BODY = ("POST", "PUT", "PATCH")

_INTEGER = b"0123456789- \t\r\n"  # what an integer consists of, and what may be around it
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NO_BRACKET = bytes(set(range(256)) - set(b"[]{}"))
_DIGITS = bytes(ord("0") if chr(one).isascii() and chr(one).isdigit() else 0 for one in range(256))
_LONG = b"0" * (MAX_DIGITS + 1)

# The settings of the request that is being handled.
CONFIG: ContextVar[LZPenaltyConfig | None] = ContextVar("lz_penalty_config", default=None)

Receive = Callable[[], Awaitable[Any]]
Check = Callable[[str, dict[str, Any]], None]


class Guard:
    """ASGI middleware: refuses requests without the key, bodies that are too much, and bad `lz_*` fields.

    Args:
        app: what handles the requests that pass.
        operator: the server's default and caps.
        key: what a request must carry as `Authorization: Bearer KEY`, from `checked_key`; `None` for no key.
        public: paths that need no key. Their bodies are not read here.
        check: raises `LZPenaltyError` for a path and fields that the app would refuse slowly; `None` for no check.
    """

    def __init__(
        self,
        app: Any,
        operator: ServerSettings,
        key: bytes | None = None,
        public: Collection[str] = (),
        check: Check | None = None,
    ) -> None:
        self.app = app
        self._operator = operator
        self._key = key
        self._public = frozenset(public)
        self._check = check

    async def __call__(self, scope: Any, receive: Receive, send: Any) -> None:
        """Handle one request."""
        if scope["type"] != "http" or scope["path"] in self._public:
            return await self.app(scope, receive, send)
        if not self._may(scope["headers"]):
            return await _refuse(send, 401, "Invalid API key. Send it as Authorization: Bearer KEY.", "invalid_api_key")
        try:
            body = await asyncio.wait_for(_body(scope["headers"], receive), BODY_SECONDS)
            if body is None:
                return None  # the client has gone
            config = self._config(scope, body) if scope["method"] in WITH_BODY else None
        except asyncio.TimeoutError:
            return await _refuse(send, 408, f"the request's body took longer than {BODY_SECONDS:g} s. Send it faster.")
        except _NotJSONError:
            return await _refuse(
                send, 415, "the request's body must be JSON. Send it as Content-Type: application/json."
            )
        except _TooLongError:
            return await _refuse(send, 413, f"the request's body is longer than {MAX_BODY} bytes. Shorten it.")
        except LZPenaltyError as error:
            return await _refuse(send, 400, str(error))
        token = CONFIG.set(config)
        try:
            await self.app(scope, _replayed(body, receive), send)
        finally:
            CONFIG.reset(token)

    def _config(self, scope: Any, body: bytes) -> LZPenaltyConfig | None:
        """The settings that a body asks for; raises where it is no JSON object, or one that is not for this path."""
        if _media_type(scope["headers"]) != b"application/json":
            raise _NotJSONError
        fields, path = fields_of(body), scope["path"]
        config = None
        if scope["method"] == "POST" and path.endswith(PENALISED):
            config = self._operator.config_of(fields)
        elif any(name.startswith("lz_") for name in fields):
            raise LZPenaltyError(
                "lz_* fields have no effect on this path: they are for POST to /v1/completions and /v1/chat/completions. "
                "Leave them out."
            )
        if self._check is not None:
            self._check(path, fields)
        return config

    def _may(self, headers: list[tuple[bytes, bytes]]) -> bool:
        """Whether the request has the key; how long this takes does not depend on how much of it is right."""
        if self._key is None:
            return True
        scheme, _, given = next((value for name, value in headers if name == b"authorization"), b"").partition(b" ")
        return hmac.compare_digest(given, self._key) and scheme.lower() == b"bearer"


def checked_key(key: str | None) -> bytes | None:
    """An API key as it is in a header; refuses one that no header can have, without showing it."""
    if key is None:
        return None
    if not key or not all("!" <= character <= "~" for character in key):
        raise LZPenaltyError(
            "api_key: must be ASCII letters, digits and signs without spaces, at least one; an HTTP header has no others. "
            "Choose another key."
        )
    return key.encode()


class _NotJSONError(Exception):
    """The body is said to be something else."""


def _media_type(headers: list[tuple[bytes, bytes]]) -> bytes:
    given = next((value for name, value in headers if name == b"content-type"), b"")
    return given.partition(b";")[0].strip().lower()


class _TooLongError(Exception):
    """The body exceeds `MAX_BODY`."""


async def _body(headers: list[tuple[bytes, bytes]], receive: Receive) -> bytes | None:
    """The whole body, `None` if the client has gone; a length that is announced is checked before anything is read."""
    for name, value in headers:
        if name == b"content-length" and (not value.isdigit() or len(value) > 9 or int(value) > MAX_BODY):
            raise _TooLongError
    body = bytearray()  # grows in amortised linear time, and many small parts take no more memory than one
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        if len(body) > MAX_BODY:
            raise _TooLongError
        if not message.get("more_body"):
            return bytes(body)


def fields_of(body: bytes) -> dict[str, Any]:
    """The fields of a JSON object; refuses one that would take long to parse.

    >>> fields_of(b'{"prompt": "a", "lz_penalty": 0.3}')
    {'prompt': 'a', 'lz_penalty': 0.3}
    >>> fields_of(b"[" * 100_000)
    Traceback (most recent call last):
    lz_penalty.errors.LZPenaltyError: the request's body has more than 6144 values that are not integers in a list. Send fewer.
    """
    _check_structure(body)
    try:
        given = json.loads(body.decode("utf-8"))
    except ValueError as error:  # UnicodeDecodeError too
        raise LZPenaltyError(f"the request's body is not JSON in UTF-8: {str(error)[:200]}.") from None
    if not isinstance(given, dict):
        raise LZPenaltyError("the request's body must be a JSON object, such as {...}.")
    return given


def _check_structure(body: bytes) -> None:
    marks = _count(body, b",[{\\")
    if marks > MAX_MARKS:
        raise LZPenaltyError(
            f"the request's body has {marks} commas, opening brackets and backslashes: must be at most {MAX_MARKS}. "
            "Shorten it, or send text as UTF-8 and not as \\u escapes."
        )
    digits = _has_long_number(body)
    if marks <= MAX_FRACTIONS // 2 and _count(body, b"[{") <= MAX_DEPTH and not digits:
        return
    # Strings begin and end with a quote that is not escaped, so what is outside of them is every second part.
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in body else body
    parts = plain.split(b'"', 4 * MAX_VALUES)
    outside = b'"'.join(parts[::2])
    if digits and _has_long_number(outside):
        raise LZPenaltyError(
            f"the request's body has a number with more than {MAX_DIGITS} digits in a row. Send one with fewer."
        )
    if len(parts) > 4 * MAX_VALUES:
        raise _too_many_values()
    if _count(outside, b".eE") > MAX_FRACTIONS:
        raise LZPenaltyError(
            f"the request's body has more than {MAX_FRACTIONS} full stops and letters e outside of strings, as fractions, "
            "exponents, true and false have them. Send fewer."
        )
    if _count(outside, b",[{") > MAX_VALUES:
        _check_integers(outside)
    if not _closes(outside.translate(_BRACKETS, _NO_BRACKET)):
        raise LZPenaltyError(
            f"the request's body has more than {MAX_DEPTH} levels, or brackets without a partner. Send fewer levels."
        )


def _check_integers(outside: bytes) -> None:
    """Raise unless at most `MAX_VALUES` values are something else than integers that follow each other."""
    if outside.count(b",") > MAX_INTEGERS:
        raise LZPenaltyError(f"the request's body has more than {MAX_INTEGERS} values. Send fewer.")
    if len(outside) > MAX_OUTSIDE:
        raise LZPenaltyError(
            f"the request's body has more than {MAX_VALUES} values and {len(outside)} bytes outside of strings: must be at "
            f"most {MAX_OUTSIDE}. Send fewer values, and no spaces."
        )
    others = filter(None, outside.translate(None, _INTEGER).split(b","))  # of an integer between commas nothing is left
    if len(list(others)) + _count(outside, b"[{") > MAX_VALUES:
        raise _too_many_values()


def _too_many_values() -> LZPenaltyError:
    return LZPenaltyError(
        f"the request's body has more than {MAX_VALUES} values that are not integers in a list. Send fewer."
    )


def _closes(brackets: bytes) -> bool:
    """Whether all brackets have partners, in at most `MAX_DEPTH` levels. Each round removes the innermost one."""
    rounds = MAX_DEPTH if len(brackets) == 2 * brackets.count(b"[") else 0
    for _ in range(rounds):
        brackets = brackets.replace(b"[]", b"")
        if not brackets:
            break
    return not brackets


def _count(body: bytes, of: bytes) -> int:
    return sum(body.count(one) for one in of)


def _has_long_number(body: bytes) -> bool:
    few = body[:: MAX_DIGITS // 2]  # a number that is too long has two of them, one after the other
    return b"00" in few.translate(_DIGITS) and _LONG in body.translate(_DIGITS)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """What the app reads: the body once more, then whatever comes."""
    left = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Any:
        return left.pop() if left else await receive()

    return again


async def _refuse(send: Any, status: int, message: str, code: str | None = None) -> None:
    """Answer in OpenAI's form; where the body was not read to its end, the connection is closed."""
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status != 400:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Connection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """A connection of uvicorn's that is closed when the headers of a request do not come; uvicorn waits for ever.

    It reads little at a time, so that others, and the refusal of its own request, do not wait until all is parsed.
    """

    _closing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Called by asyncio. Wait for a first request."""
        super().connection_made(transport)
        if hasattr(transport, "max_size"):  # asyncio's; uvloop's has none
            transport.max_size = MAX_READ
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Called by asyncio. Wait for the rest of the headers, unless a request is being handled."""
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._wait()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._closing is None:
            self._closing = self.loop.call_later(HEADER_SECONDS, self._close)

    def _stop_waiting(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None

    def _close(self) -> None:
        self._closing = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
