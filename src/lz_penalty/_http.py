"""What our HTTP servers share: bounds on headers, bodies and JSON, and refusals in OpenAI's format.

A body is read in a bounded time. It is parsed only if its size and structure make that fast, because parsing blocks
every other request.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from lz_penalty.errors import LZPenaltyError

__all__ = ["Connection", "Receive", "TooLongError", "fields_of", "read_body", "refuse"]

MAX_MARKS = 131_072  # commas, opening brackets and backslashes, also in strings
MAX_VALUES = 6_144  # values other than integers in a list: commas and opening brackets outside of strings
MAX_INTEGERS = 33_792  # values in all; integers in a list, such as 32k tokens, are parsed fast
MAX_OUTSIDE = 320 * 1024  # bytes outside of strings, if there are more than MAX_VALUES values
MAX_FRACTIONS = 4_096  # full stops and letters e outside of strings: Python is slow for fractions with exponents
MAX_DIGITS = 64  # of a number: Python takes quadratic time for long integers
MAX_DEPTH = 64  # levels; near the recursion limit, a body could pass here and fail in the stock server
HEADER_SECONDS = 10.0  # for the headers of a request
MAX_READ = 4_096  # bytes that are parsed at once: in chunks of one byte, h11 takes about 6 ms for them

_INTEGER = b"0123456789- \t\r\n"  # the characters of integers and the blanks around them
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NO_BRACKET = bytes(set(range(256)) - set(b"[]{}"))
_DIGITS = bytes(ord("0") if chr(one).isascii() and chr(one).isdigit() else 0 for one in range(256))
_LONG = b"0" * (MAX_DIGITS + 1)

Receive = Callable[[], Awaitable[Any]]


class TooLongError(Exception):
    """The body is longer than allowed."""


async def read_body(headers: list[tuple[bytes, bytes]], receive: Receive, most: int) -> bytes | None:
    """Return the whole body, or `None` if the client has disconnected. Content-Length is checked before reading."""
    for name, value in headers:
        if name == b"content-length" and (not value.isdigit() or len(value) > 12 or int(value) > most):
            raise TooLongError
    body = bytearray()  # takes linear time, and many small parts need no more memory than one large part
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        if len(body) > most:
            raise TooLongError
        if not message.get("more_body"):
            return bytes(body)


def fields_of(body: bytes) -> dict[str, Any]:
    """Return the fields of a JSON object; raise if it would take long to parse.

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
    # Strings begin and end with a quote that is not escaped, so every second part is outside of strings.
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
            f"the request's body has more than {MAX_FRACTIONS} full stops and letters e outside of strings (in fractions, "
            "exponents, true and false). Send fewer."
        )
    if _count(outside, b",[{") > MAX_VALUES:
        _check_integers(outside)
    if not _closes(outside.translate(_BRACKETS, _NO_BRACKET)):
        raise LZPenaltyError(
            f"the request's body has more than {MAX_DEPTH} levels, or brackets without a partner. Send fewer levels."
        )


def _check_integers(outside: bytes) -> None:
    """Raise if more than `MAX_VALUES` values are not integers in a list."""
    if outside.count(b",") > MAX_INTEGERS:
        raise LZPenaltyError(f"the request's body has more than {MAX_INTEGERS} values. Send fewer.")
    if len(outside) > MAX_OUTSIDE:
        raise LZPenaltyError(
            f"the request's body has more than {MAX_VALUES} values and {len(outside)} bytes outside of strings: must be at "
            f"most {MAX_OUTSIDE}. Send fewer values, and no spaces."
        )
    others = filter(None, outside.translate(None, _INTEGER).split(b","))  # integers between commas become empty
    if len(list(others)) + _count(outside, b"[{") > MAX_VALUES:
        raise _too_many_values()


def _too_many_values() -> LZPenaltyError:
    return LZPenaltyError(
        f"the request's body has more than {MAX_VALUES} values that are not integers in a list. Send fewer."
    )


def _closes(brackets: bytes) -> bool:
    """Return whether all brackets have partners in at most `MAX_DEPTH` levels. Each round removes the innermost pairs."""
    rounds = MAX_DEPTH if len(brackets) == 2 * brackets.count(b"[") else 0
    for _ in range(rounds):
        brackets = brackets.replace(b"[]", b"")
        if not brackets:
            break
    return not brackets


def _count(body: bytes, of: bytes) -> int:
    return sum(body.count(one) for one in of)


def _has_long_number(body: bytes) -> bool:
    few = body[:: MAX_DIGITS // 2]  # a number that is too long contains two neighbours of this sample
    return b"00" in few.translate(_DIGITS) and _LONG in body.translate(_DIGITS)


async def refuse(send: Any, status: int, message: str, code: str | None = None) -> None:
    """Answer with an error in OpenAI's format. Close the connection if the body was not read completely."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = {"message": message, "type": kind, "param": None, "code": code}
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status != 400:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Connection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """A uvicorn connection that closes if the headers of a request do not arrive; uvicorn itself would wait forever.

    It reads little at a time, so that other requests, and the refusal of its own request, do not wait for the parser.
    """

    _closing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Wait for the first request; called by asyncio."""
        super().connection_made(transport)
        if hasattr(transport, "max_size"):  # uvloop's transport has none
            transport.max_size = MAX_READ
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of the headers, unless a request is being handled; called by asyncio."""
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._wait()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting; called by asyncio."""
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
