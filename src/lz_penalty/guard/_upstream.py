"""Send requests to the configured upstream server, and to no other."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx

from lz_penalty.guard._settings import GuardSettings

__all__ = ["ACTION_HEADER", "Headers", "Upstream", "UpstreamError", "kind_of", "passed_back", "passed_on", "target_of"]

ACTION_HEADER = b"x-lz-guard-action"
MAX_TARGET = 8_192  # bytes

_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer trailers "
    b"transfer-encoding upgrade".split()
)
Headers = list[tuple[bytes, bytes]]


class UpstreamError(Exception):
    """Upstream cannot be reached, or its answer broke off.

    Args:
        kind: a word for the metrics.
        status: the status for a client that has received nothing yet.
        message: what happened.
    """

    def __init__(self, kind: str, status: int, message: str) -> None:
        super().__init__(message)
        self.kind, self.status, self.message = kind, status, message


class Upstream:
    """The configured server. Follows no redirects, reads no proxy settings, and stores no cookies and no keys."""

    def __init__(self, settings: GuardSettings) -> None:
        context = (
            ssl.create_default_context(cafile=settings.ca_file) if settings.ca_file else httpx.create_ssl_context()
        )
        self._transport = httpx.AsyncHTTPTransport(
            verify=context,
            trust_env=False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=15),
        )
        self._base = httpx.URL(settings.upstream)
        self._prefix = urlsplit(settings.upstream).path.encode("ascii")
        self._timeout = httpx.Timeout(settings.idle_seconds, connect=settings.connect_seconds).as_dict()
        self._idle = settings.idle_seconds

    async def send(self, method: str, target: bytes, headers: Headers, content: Any) -> httpx.Response:
        """Send a request and return the answer, whose body has not been read.

        Args:
            method: of the request.
            target: path and query, from `target_of`.
            headers: from `passed_on`.
            content: the body as bytes, as an asynchronous iterator of bytes, or `None`.
        """
        request = httpx.Request(
            method,
            self._base,
            headers=headers,
            content=content,
            extensions={"timeout": self._timeout, "target": self._prefix + target},
        )
        try:
            return await self._transport.handle_async_request(request)
        except Exception as error:
            raise self._named(error) from None

    async def chunks(self, response: httpx.Response) -> AsyncIterator[bytes]:
        """Yield the bytes of an answer as they arrive."""
        try:
            async for chunk in response.stream:  # type: ignore[union-attr]
                yield chunk
        except Exception as error:
            raise self._named(error) from None

    async def close(self, response: httpx.Response) -> None:
        """End an answer at once, so that upstream stops writing it."""
        with suppress(Exception):
            await response.stream.aclose()  # type: ignore[union-attr]

    async def aclose(self) -> None:
        """Close all connections."""
        await self._transport.aclose()

    def _named(self, error: Exception) -> Exception:
        if isinstance(error, httpx.ConnectTimeout):
            return UpstreamError("connect", 504, "upstream did not accept a connection in time.")
        if isinstance(error, httpx.TimeoutException):
            return UpstreamError("timeout", 504, f"upstream was silent for {self._idle:g} s.")
        if isinstance(error, httpx.ConnectError):
            return UpstreamError("connect", 502, "upstream cannot be reached.")
        if isinstance(error, (httpx.TransportError, httpx.InvalidURL, httpx.StreamError)):
            return UpstreamError("broken", 502, f"upstream's answer is broken ({type(error).__name__}).")
        return error


def target_of(scope: dict[str, Any]) -> bytes | None:
    """Return path and query of a request, or `None` if they could lead anywhere but below upstream's address.

    >>> target_of({"raw_path": b"/v1/models", "query_string": b"a=1"})
    b'/v1/models?a=1'
    >>> target_of({"raw_path": b"http://other/v1", "query_string": b""}), target_of({"raw_path": b"/v1/%2e%2e/x"})
    (None, None)
    """
    path: bytes = scope.get("raw_path") or b""
    query: bytes = scope.get("query_string") or b""
    target = path + (b"?" + query if query else b"")
    if not path.startswith(b"/") or len(target) > MAX_TARGET or not all(33 <= one <= 126 for one in target):
        return None
    segments = unquote(unquote(path.decode("ascii"), "latin-1"), "latin-1").replace("\\", "/").split("/")
    return None if {".", ".."} & set(segments) else target


def passed_on(headers: Iterable[tuple[bytes, bytes]], *, examined: bool) -> Headers:
    """Return a request's headers for upstream. Examined answers must not be compressed."""
    given = list(headers)
    dropped = _HOP_BY_HOP | _named_in_connection(given) | {b"host", b"expect", ACTION_HEADER}
    if examined:
        dropped |= {b"accept-encoding", b"content-length"}
    kept = [(name, value) for name, value in given if name.lower() not in dropped]
    return [*kept, (b"accept-encoding", b"identity")] if examined else kept


def passed_back(response: httpx.Response, *, without_length: bool = False) -> Headers:
    """Return an answer's headers for the client."""
    dropped = (
        _HOP_BY_HOP | _named_in_connection(response.headers.raw) | ({b"content-length"} if without_length else set())
    )
    return [(name, value) for name, value in response.headers.raw if name.lower() not in dropped]


def _named_in_connection(headers: Iterable[tuple[bytes, bytes]]) -> set[bytes]:
    values = [value for name, value in headers if name.lower() == b"connection"]
    return {token.strip().lower() for value in values for token in value.split(b",")}


def kind_of(response: httpx.Response) -> str:
    """Return how an answer can be examined: `events`, `whole`, `encoded` (compressed, so it cannot) or `other`."""
    media = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    kind = {"text/event-stream": "events", "application/json": "whole"}.get(media, "other")
    if response.status_code != 200 or kind == "other":
        return "other"
    return kind if response.headers.get("content-encoding", "identity").lower() == "identity" else "encoded"
