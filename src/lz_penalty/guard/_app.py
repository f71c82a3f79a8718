"""The guard as an ASGI app, and the server that runs it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import secrets
import socket
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router

from lz_penalty import __version__
from lz_penalty._http import Connection, TooLongError, read_body, refuse
from lz_penalty.errors import LZPenaltyError, bad_value
from lz_penalty.guard._again import Plugins
from lz_penalty.guard._events import route_of
from lz_penalty.guard._exchange import AbortedError, Exchange, Reply, Services
from lz_penalty.guard._metrics import JSONLines, Metrics, log
from lz_penalty.guard._settings import GuardSettings
from lz_penalty.guard._upstream import ACTION_HEADER, Upstream, UpstreamError, passed_back, passed_on, target_of
from lz_penalty.guard._watch import warm_up

__all__ = ["create_app", "serve"]

Receive = Any


class _ClientLeftError(Exception):
    """The client has disconnected."""


def create_app(settings: GuardSettings) -> Router:
    """Return the guard as an ASGI app: `/health`, `/metrics`, and everything else from upstream.

    Takes some seconds if Numba has to compile, so that the first answer that is examined does not wait.

    Args:
        settings: what the operator sets; `host`, `port`, `max_connections` and `grace_seconds` are the server's.
    """
    warm_up()
    metrics = Metrics()
    upstream = Upstream(settings)
    proxy = _Proxy(Services(settings, upstream, metrics, Plugins(settings.plugin), asyncio.Lock()))

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok", "version": __version__})

    async def show_metrics(_: Request) -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    @contextlib.asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        yield
        await upstream.aclose()

    routes = [Route("/health", health), Route("/metrics", show_metrics)]
    return Router(routes, redirect_slashes=False, default=proxy, lifespan=lifespan)


class _Proxy:
    """Handle every request that is not the guard's own."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._settings = services.settings

    async def __call__(self, scope: Any, receive: Receive, send: Any) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            return
        begin = time.monotonic()
        route = route_of(scope["path"]) if scope["method"] == "POST" else None
        handled = _Handled(self._services, scope, receive, send, route)
        metrics = self._services.metrics
        metrics.open.inc()
        try:
            await handled.run()
        except AbortedError:
            raise
        except asyncio.CancelledError:
            handled.outcome = "stopped"
            raise
        except Exception:
            handled.outcome = "failed"
            raise
        finally:
            metrics.open.dec()
            seconds = time.monotonic() - begin
            metrics.requests.labels(route or "other", handled.outcome).inc()
            metrics.seconds.labels(route or "other").observe(seconds)
            handled.log(seconds)


class _Handled:
    """One request, and what became of it."""

    def __init__(self, services: Services, scope: Any, receive: Receive, send: Any, route: str | None) -> None:
        self._services, self._settings = services, services.settings
        self._scope, self._receive, self._send, self._route = scope, receive, send, route
        self._reply = Reply(send)
        self._exchange: Exchange | None = None
        self.outcome = "passed"

    def log(self, seconds: float) -> None:
        """Write one line about the request."""
        exchange = self._exchange
        log(
            "request",
            id=secrets.token_hex(6),
            route=self._route or "other",
            status=self._reply.status,
            outcome=self.outcome,
            seconds=round(seconds, 4),
            bytes=self._reply.size,
            events=exchange.events if exchange else 0,
            loops=[one.without_text() for one in exchange.verdicts] if exchange else [],
        )

    async def run(self) -> None:
        """Answer the request."""
        target = target_of(self._scope)
        if target is None:
            return await self._refuse(400, "the path must begin with / and must not contain . or .. as a part.")
        try:
            work = await (self._examined(target) if self._route else self._passed(target))
        except _ClientLeftError:
            self.outcome = "client left"
            return None
        except LZPenaltyError as error:
            return await self._refuse(400, str(error))
        except TooLongError:
            most = self._settings.max_body
            return await self._refuse(413, f"the request's body is longer than {most} bytes. Shorten it.")
        except asyncio.TimeoutError:
            seconds = self._settings.body_seconds
            return await self._refuse(408, f"the request's body took longer than {seconds:g} s. Send it faster.")
        if work is not None:
            await self._until_client_leaves(*work)
        return None

    async def _refuse(self, status: int, message: str) -> None:
        self._reply.status = status
        self.outcome = "refused" if status < 500 else self.outcome
        await refuse(self._send, status, f"lz-penalty guard: {message}", "lz_guard")

    async def _examined(self, target: bytes) -> Any:
        headers = self._scope["headers"]
        asked = next((value.decode("latin-1") for name, value in headers if name == ACTION_HEADER), None)
        action = self._settings.action_of(self._route or "", asked)
        reading = read_body(headers, self._receive, self._settings.max_body)
        body = await asyncio.wait_for(reading, self._settings.body_seconds)
        if body is None:
            raise _ClientLeftError
        reply, route = self._reply, self._route or ""
        self._exchange = Exchange(self._services, reply, route, action, target, passed_on(headers, examined=True), body)
        return self._exchange.run(), self._gone()

    async def _passed(self, target: bytes) -> Any:
        """Pass on a request as it is. Its body is not collected."""
        headers = self._scope["headers"]
        has_body = any(name in (b"content-length", b"transfer-encoding") for name, _ in headers)
        read = asyncio.Event()
        if not has_body:
            read.set()
        content = self._chunks(read) if has_body else None

        async def work() -> None:
            upstream = self._services.upstream
            sent = passed_on(headers, examined=False)
            response = await upstream.send(self._scope["method"], target, sent, content)
            try:
                await self._reply.start(response.status_code, passed_back(response))
                async for chunk in upstream.chunks(response):
                    await self._reply.write(chunk)
                await self._reply.end()
            finally:
                await upstream.close(response)

        return work(), self._gone(read)

    async def _chunks(self, read: asyncio.Event) -> AsyncIterator[bytes]:
        """Yield the request's body as it arrives."""
        more = True
        while more:
            message = await self._receive()
            if message["type"] != "http.request":
                raise _ClientLeftError
            more = message.get("more_body", False)
            yield message.get("body", b"")
        read.set()

    async def _gone(self, read: asyncio.Event | None = None) -> None:
        """Return when the client has disconnected."""
        if read is not None:
            await read.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _until_client_leaves(self, work: Any, gone: Any) -> None:
        """Do the work; stop it if the client disconnects or time is over."""
        tasks = [asyncio.ensure_future(work), asyncio.ensure_future(gone)]
        try:
            await asyncio.wait(tasks, timeout=self._settings.answer_seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            worked, left = tasks[0].done(), tasks[1].done()
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        if worked:
            await self._ended(results[0])
        elif left:
            self.outcome = "client left"
        else:
            self.outcome = "time over"
            await self._failed(504, f"the answer took longer than {self._settings.answer_seconds:g} s.")

    async def _ended(self, error: Any) -> None:
        self.outcome = self._exchange.outcome if self._exchange else "passed"
        if isinstance(error, _ClientLeftError):
            self.outcome = "client left"
        elif isinstance(error, UpstreamError):
            if self.outcome == "passed":
                self._services.metrics.upstream_errors.labels(error.kind).inc()
                self.outcome = f"upstream {error.kind}"
            await self._failed(error.status, error.message)
        elif isinstance(error, BaseException):
            raise error

    async def _failed(self, status: int, message: str) -> None:
        """Tell the client about a failure: as an answer, or by closing the connection if the answer has begun."""
        if self._reply.status:
            raise AbortedError(message)
        await self._refuse(status, message)


class _NoAborts(logging.Filter):
    """Leave out uvicorn's report of an answer that the guard broke off on purpose."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is written."""
        return not (record.exc_info and isinstance(record.exc_info[1], AbortedError))


def serve(settings: GuardSettings) -> None:
    """Serve the guard until it is interrupted. Raises if it cannot listen on its host and port."""
    import uvicorn

    sockets = _listening(settings.host, settings.port)
    handler = logging.StreamHandler()
    handler.setFormatter(JSONLines())
    logging.getLogger().handlers = [handler]  # asyncio and libraries, from warnings on
    for name, level in (("lz_penalty.guard", logging.INFO), ("uvicorn.error", logging.INFO)):
        logger = logging.getLogger(name)
        logger.setLevel(level)
        logger.handlers, logger.propagate = [handler], False
    logging.getLogger("uvicorn.error").addFilter(_NoAborts())
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"http://{host}:{sockets[0].getsockname()[1]}"
    log("start", version=__version__, upstream=settings.upstream, action=settings.action, address=address)
    config = uvicorn.Config(
        create_app(settings),
        loop="asyncio",
        http=Connection,
        ws="none",
        workers=1,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        limit_concurrency=settings.max_connections,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=max(1, round(settings.grace_seconds)),
    )
    server = uvicorn.Server(config)
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets)
    if not server.started:
        sys.exit(3)  # as uvicorn itself; its log says why


def _listening(host: str, port: int) -> list[socket.socket]:
    """Return a socket for each address of a host. Raise if there is none, or if the port cannot be had."""
    allowed = "an address or a name of this machine, such as 127.0.0.1 or 0.0.0.0"
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise bad_value("host", host, allowed, "It cannot be resolved.") from None
    sockets = list[socket.socket]()
    for family, _, _, _, address in dict.fromkeys(found):
        try:
            sockets.append(socket.create_server(address, family=family, backlog=2_048))
        except OSError as error:
            if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                continue  # `localhost` may have an IPv6 address that the machine does not have
            for one in sockets:
                one.close()
            if error.errno == errno.EADDRINUSE:
                raise LZPenaltyError(f"port {port} is in use on {host}: give another --port.") from None
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise LZPenaltyError(
                f"cannot listen on {host}, port {port} ({reason}): give another --host or --port."
            ) from None
    if not sockets:
        raise bad_value("host", host, allowed, "This machine does not have it.")
    return sockets
