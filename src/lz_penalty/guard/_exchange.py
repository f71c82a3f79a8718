"""One request whose answer is examined: pass it on, cut it in a loop, and ask again if the operator wants that."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx

from lz_penalty._http import fields_of
from lz_penalty.errors import LZPenaltyError
from lz_penalty.guard._again import Plugins, continuation, safer, to_bytes
from lz_penalty.guard._followed import MAX_CHOICES, Followed
from lz_penalty.guard._metrics import Metrics
from lz_penalty.guard._settings import GuardSettings
from lz_penalty.guard._stream import FIELD, Stream
from lz_penalty.guard._upstream import Headers, Upstream, UpstreamError, kind_of, passed_back
from lz_penalty.guard._watch import Verdict, is_quick
from lz_penalty.guard._whole import Whole, examined

__all__ = ["ANSWER_HEADER", "AbortedError", "Exchange", "Reply", "Services"]

ANSWER_HEADER = b"x-lz-guard"
MAX_PROBE = 65_536  # bytes that are read of the answer to a probe


class AbortedError(Exception):
    """The answer broke off after it had begun: the connection to the client is closed."""


@dataclass(frozen=True)
class Services:
    """What all requests share."""

    settings: GuardSettings
    upstream: Upstream
    metrics: Metrics
    plugins: Plugins
    lock: asyncio.Lock  # one long answer is examined at a time, which bounds the memory


class Reply:
    """The answer to the client."""

    def __init__(self, send: Any) -> None:
        self._send = send
        self.status = 0
        self.size = 0

    async def start(self, status: int, headers: Headers) -> None:
        """Send status and headers."""
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, data: bytes) -> None:
        """Send bytes; waits while the client does not take them."""
        if data:
            self.size += len(data)
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        """Send the last bytes."""
        self.size += len(data)
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def whole(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole answer of another length than upstream's."""
        length = (b"content-length", str(len(body)).encode())
        await self.start(status, [*((n, v) for n, v in headers if n.lower() != b"content-length"), length])
        await self.end(body)


class Exchange:
    """One request to a route whose answers are examined.

    Args:
        services: what all requests share.
        reply: the answer to the client.
        route: `chat`, `completions` or `responses`.
        action: what happens in a loop.
        target: path and query.
        headers: for upstream.
        body: of the request.
    """

    def __init__(
        self, services: Services, reply: Reply, route: str, action: str, target: bytes, headers: Headers, body: bytes
    ) -> None:
        self._services, self._settings = services, services.settings
        self._reply = reply
        self._route, self._action = route, action
        self._target, self._headers, self._body = target, headers, body
        self._fields: dict[str, Any] | None = None
        self.verdicts: list[Verdict] = []
        self.events = 0
        self.outcome = "passed"

    async def run(self) -> None:
        """Answer the request."""
        response = await self._ask(self._body)
        try:
            kind = kind_of(response)
            if kind == "events":
                await self._stream(response)
            elif kind == "whole":
                await self._whole(response)
            else:
                if kind == "encoded":
                    self._services.metrics.unexamined.labels("encoded").inc()
                await self._pass(response)
        finally:
            await self._services.upstream.close(response)

    async def _ask(self, body: bytes) -> httpx.Response:
        return await self._services.upstream.send("POST", self._target, self._headers, body)

    async def _pass(
        self, response: httpx.Response, before: bytes = b"", rest: AsyncIterator[bytes] | None = None
    ) -> None:
        """Send an answer as it is, `before` being the part that was read already."""
        await self._reply.start(response.status_code, passed_back(response))
        await self._reply.write(before)
        await self._relayed(rest or self._services.upstream.chunks(response))
        await self._reply.end()

    async def _relayed(self, chunks: AsyncIterator[bytes]) -> None:
        try:
            async for chunk in chunks:
                await self._reply.write(chunk)
        except UpstreamError as error:
            raise self._aborted(error) from None

    def _aborted(self, error: UpstreamError) -> AbortedError:
        self._services.metrics.upstream_errors.labels(error.kind).inc()
        self.outcome = f"upstream {error.kind}"
        return AbortedError(error.message)

    # ---------------------------------------------------------------- streams

    async def _stream(self, response: httpx.Response) -> None:
        await self._reply.start(200, passed_back(response, without_length=True))
        stream = self._follow()
        await self._events(response, stream)
        if not stream.answer.looped:
            await self._reply.end()
            return
        await self._services.upstream.close(response)  # no more tokens are paid for
        verdict = stream.answer.verdicts[0]
        again = await self._continued(stream, verdict)
        if again is None:
            self.outcome = "cut"
            await self._reply.end(self._ending(stream, verdict, "cut"))
            return
        self.outcome = self._action
        try:
            await self._reply.write(stream.seam(self._about(verdict, self._action)))
            second = self._follow()
            await self._events(again, second)
            await self._reply.end(
                self._ending(second, second.answer.verdicts[0], "cut") if second.answer.looped else b""
            )
        finally:
            await self._services.upstream.close(again)

    def _follow(self) -> Stream:
        answer = Followed(
            self._route,
            self._settings.thresholds,
            cuts=self._action != "watch",
            keeps=self._settings.max_answer if self._action in ("continue", "retry") else 0,
            choices=self._choices,
        )
        return Stream(answer, self._settings.max_event)

    async def _events(self, response: httpx.Response, stream: Stream) -> None:
        """Pass on a stream until it ends or is over."""
        try:
            async for chunk in self._services.upstream.chunks(response):
                await self._reply.write(stream.feed(chunk))
                if stream.is_over:
                    break
        except UpstreamError as error:
            aborted = self._aborted(error)
            if not stream.pending:  # the client is not in the middle of an event
                await self._reply.write(f"data: {_error(error.message, error.kind)}\n\n".encode())
            raise aborted from None
        finally:
            self._count(stream)

    def _count(self, stream: Stream) -> None:
        metrics = self._services.metrics
        self.events += stream.events
        metrics.events.inc(stream.events)
        for why, number in (
            ("long event", stream.long),
            ("not JSON", stream.unparsed),
            ("too many texts", int(stream.answer.unwatched)),
        ):
            if number:
                metrics.unexamined.labels(why).inc(number)
        self._found(stream.answer.verdicts)

    def _found(self, verdicts: list[Verdict]) -> None:
        self.verdicts += verdicts
        self._services.metrics.looped(self._route, self._action, verdicts)
        if verdicts and self._action == "watch":
            self.outcome = "watched"

    def _ending(self, stream: Stream, verdict: Verdict, action: str) -> bytes:
        options = self._request().get("stream_options")
        with_usage = isinstance(options, dict) and options.get("include_usage") is True
        about = self._about(verdict, action)
        return stream.ending(self._settings.finish_reason, about, with_usage=with_usage)

    def _about(self, verdict: Verdict, action: str) -> dict[str, Any]:
        return {"action": action} | verdict.to_json()

    async def _continued(self, stream: Stream, verdict: Verdict) -> httpx.Response | None:
        """Ask upstream to continue after a cut. Return its stream, or `None` if there is none."""
        if self._action not in ("continue", "retry") or verdict.channel != "content" or not stream.answer.complete:
            return None
        fields = continuation(
            self._route, self._request(), stream.answer.text[: verdict.first_copy_end], self._settings
        )
        if fields is None:
            return None
        response = await self._second(fields)
        if response is not None and kind_of(response) == "events":
            self._asked("answered")
            return response
        self._asked("refused")
        if response is not None:
            await self._services.upstream.close(response)
        return None

    # ---------------------------------------------------------------- whole answers

    async def _whole(self, response: httpx.Response) -> None:
        try:
            body, rest = await self._read(response)
        except UpstreamError as error:
            self._services.metrics.upstream_errors.labels(error.kind).inc()
            self.outcome = f"upstream {error.kind}"
            raise
        if rest is not None:
            self._services.metrics.unexamined.labels("long answer").inc()
            await self._pass(response, body, rest)
            return
        found = await self._examined(body)
        if found is None or not found.loops or self._action == "watch":
            await self._reply.start(response.status_code, passed_back(response))
            await self._reply.end(body)
            return
        verdict = found.verdicts[0]
        headers = passed_back(response)
        answer = await self._replaced(found) if self._action in ("continue", "retry") else None
        self.outcome = self._action if answer is not None else "cut"
        if answer is None:
            found.cut_back(self._settings.finish_reason)
            answer = found.fields
        about = self._about(verdict, self.outcome)
        headers.append((ANSWER_HEADER, json.dumps(about).encode("ascii")))
        await self._reply.whole(200, headers, to_bytes(answer | {FIELD: about}))

    async def _read(self, response: httpx.Response) -> tuple[bytes, AsyncIterator[bytes] | None]:
        """Return the body, or its begin and the rest if it is too long to examine."""
        parts, size = list[bytes](), 0
        chunks = self._services.upstream.chunks(response)
        async for chunk in chunks:
            parts.append(chunk)
            size += len(chunk)
            if size > self._settings.max_answer:
                return b"".join(parts), chunks
        return b"".join(parts), None

    async def _examined(self, body: bytes) -> Whole | None:
        if is_quick(len(body)):
            found = examined(self._route, body, self._settings.thresholds)
        else:
            async with self._services.lock:
                found = await asyncio.to_thread(examined, self._route, body, self._settings.thresholds)
        if found is None:
            self._services.metrics.unexamined.labels("not JSON").inc()
        else:
            self._found(found.verdicts)
        return found

    async def _replaced(self, first: Whole) -> dict[str, Any] | None:
        """Return the answer to a second request, which replaces or continues the first; `None` if there is none."""
        text = None
        fields: dict[str, Any] | None = self._request()
        if self._action == "continue":
            content, verdict = first.content, first.verdicts[0]
            if content is None or len(first.loops) != 1 or verdict.channel != "content":
                return None
            text = content[: verdict.first_copy_end]
            fields = continuation(self._route, self._request(), text, self._settings)
        if not fields:
            return None
        response = await self._second(fields)
        if response is None:
            return None
        try:
            body, rest = await self._read(response)
        except UpstreamError:
            body, rest = b"", None
        finally:
            await self._services.upstream.close(response)
        second = await self._examined(body) if kind_of(response) == "whole" and rest is None else None
        self._asked("answered" if second is not None else "refused")
        if second is None:
            return None
        second.cut_back(self._settings.finish_reason)
        if text is not None and not second.prepend(text, first):
            return None
        return second.fields

    # ---------------------------------------------------------------- the second request

    def _request(self) -> dict[str, Any]:
        """Return the fields of the request; empty if they cannot be parsed in a bounded time."""
        if self._fields is None:
            try:
                self._fields = fields_of(self._body)
            except LZPenaltyError:
                self._fields = {}
        return self._fields

    def _choices(self) -> int:
        given = self._request().get("n")
        return given if type(given) is int and 1 <= given <= MAX_CHOICES else 1

    async def _second(self, fields: dict[str, Any]) -> httpx.Response | None:
        """Send the second request; with the action `retry`, with settings that loop less."""
        try:
            if self._action == "retry":
                style = await self._services.plugins.style(self._route, fields, self._probe)
                fields = safer(fields, style, self._settings)
            return await self._ask(to_bytes(fields))
        except UpstreamError as error:
            self._services.metrics.upstream_errors.labels(error.kind).inc()
            return None

    async def _probe(self, fields: dict[str, Any]) -> tuple[int, bytes]:
        response = await self._ask(to_bytes(fields))
        try:
            body = b""
            async for chunk in self._services.upstream.chunks(response):
                body += chunk
                if len(body) > MAX_PROBE:
                    break
            return response.status_code, body
        finally:
            await self._services.upstream.close(response)

    def _asked(self, result: str) -> None:
        self._services.metrics.again.labels(self._action, result).inc()


def _error(message: str, code: str) -> str:
    return json.dumps({"error": {"message": f"lz-penalty guard: {message}", "type": "upstream_error", "code": code}})
