"""Send a request and read its answer.

Needs the `openai` package: `pip install 'lz-penalty[judge]'`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from lz_penalty._checks import integer, real
from lz_penalty.errors import bad_value
from lz_penalty.evaluation.replay.log import REFUSED, with_settings

__all__ = ["Answer", "Endpoint", "FailedError", "UnreachableError", "address"]

T = TypeVar("T")


class FailedError(Exception):
    """A request has no answer; the message says why. `status` is the server's, if it gave one."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class UnreachableError(FailedError):
    """Nothing answers at the endpoint."""


@dataclass(frozen=True)
class Answer:
    """The answer of a model."""

    text: str  # with tool calls as JSON after it
    reasoning: str = ""  # before the text, if the server separates them
    finish: str | None = None  # why the answer ended
    tokens: int | None = None  # counted by the server

    @property
    def whole(self) -> str:
        """Reasoning and text together."""
        return f"{self.reasoning}\n{self.text}" if self.reasoning and self.text else self.reasoning or self.text


def address(url: str) -> str:
    """Return the address of a server, with `/v1` if it has no path; raise an error if it is not an address."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise bad_value("endpoint", url, "an address such as http://localhost:8000/v1")
    return url.rstrip("/") + ("" if parts.path.strip("/") else "/v1")


class Endpoint:
    """An OpenAI-compatible server.

    Args:
        url: its address; `/v1` is added to an address without a path.
        key_variable: name of the environment variable that contains the key; local servers often need none.
        timeout: seconds that one answer may take.
        retries: how often a request is sent again after 429, 5xx, a time-out or a lost connection; the pauses double.
    """

    def __init__(
        self, url: str, *, key_variable: str = "OPENAI_API_KEY", timeout: float = 600.0, retries: int = 4
    ) -> None:
        from openai import AsyncOpenAI

        self.url = address(url)
        self._key = os.environ.get(key_variable, "")
        self._client = AsyncOpenAI(
            api_key=self._key or "none",
            base_url=self.url,
            timeout=real(0.01, 86_400)("timeout", timeout),
            max_retries=integer(0, 20)("retries", retries),
        )

    async def ask(self, path: str, body: dict[str, Any]) -> Answer:
        """Return the answer to a request; raise `FailedError` if there is none."""
        return await self._done(self._client.post(f"/{path}", cast_to=object, body=body), _answer)

    async def check_alive(self) -> None:
        """Raise `FailedError` if the server does not answer a question for its models, or has an error of its own."""
        try:
            await self._done(self._client.get("/models", cast_to=object), lambda found: None)
        except FailedError as error:
            if error.status is None or error.status >= 500:
                raise

    async def refuses_bad_settings(self, path: str, body: dict[str, Any], style: str) -> bool:
        """Return whether the server refuses this request with a strength of -1, for one token.

        A server that accepts it does not have the penalty, or reads its settings elsewhere. Raise `FailedError` if the
        server gives another error.
        """
        short = {name: value for name, value in body.items() if name != "max_completion_tokens"} | {"max_tokens": 1}
        try:
            await self.ask(path, with_settings(short, style, REFUSED))
        except FailedError as error:
            if error.status != 400:
                raise
            return True
        return False

    async def _done(self, request: Awaitable[Any], read: Callable[[Any], T]) -> T:
        from openai import APIConnectionError, APIError, APIStatusError

        try:
            return read(await request)
        except APIConnectionError as error:  # time-outs too
            raise UnreachableError(self._line(f"no answer from {self.url}: {error.__cause__ or error}")) from None
        except APIStatusError as error:
            status = error.status_code
            raise FailedError(self._line(f"status {status}: {_message(error)}"), status) from None
        except (APIError, ValueError) as error:
            raise FailedError(self._line(f"malformed answer: {error}")) from None

    async def __aenter__(self) -> Endpoint:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.close()

    def _line(self, message: str) -> str:
        """Return a message in one line, without the key, which a server may have repeated."""
        return " ".join((message.replace(self._key, "***") if self._key else message).split())[:500]


def _message(error: Any) -> str:
    """Return the message of a server that refuses a request, in any of the usual forms."""
    body = error.body
    for name in ("error", "detail", "message"):
        body = body.get(name, body) if isinstance(body, dict) else body
    return body if isinstance(body, str) else json.dumps(body) if body else str(error)


def _answer(found: Any) -> Answer:
    """Return the first choice of a chat completion or a completion."""
    try:
        choice = found["choices"][0]
        message = choice.get("message") or {"content": choice.get("text")}
        text, calls = message.get("content") or "", message.get("tool_calls") or []
        reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    except (TypeError, KeyError, IndexError, AttributeError):
        raise ValueError("it is no completion") from None
    if not isinstance(text, str) or not isinstance(reasoning, str):
        raise ValueError("its content is no text")
    said = [json.dumps(call.get("function", call), sort_keys=True) for call in calls if isinstance(call, dict)]
    usage = found.get("usage") or {}
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    finish = choice.get("finish_reason")
    return Answer(
        "\n".join([*([text] if text else []), *said]),
        reasoning,
        finish if isinstance(finish, str) else None,
        tokens if isinstance(tokens, int) else None,
    )
