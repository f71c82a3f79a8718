"""Wrap the streams of the `openai` client: the same verdicts as the proxy's, in the program itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from lz_penalty.guard._followed import Followed
from lz_penalty.guard._watch import Thresholds, Verdict

__all__ = ["AsyncGuardedStream", "GuardedStream", "Reading"]


class Reading:
    """What both kinds of streams do with an item.

    Args:
        thresholds: when a text counts as a loop.
        choices: the number of choices that the request asked for.
    """

    def __init__(self, thresholds: Thresholds | None = None, choices: int = 1) -> None:
        self._thresholds, self._choices = thresholds or Thresholds(), choices
        self._answer: Followed | None = None

    @property
    def verdicts(self) -> list[Verdict]:
        """The loops so far."""
        return self._answer.verdicts if self._answer else []

    @property
    def is_over(self) -> bool:
        """Whether a choice looped and no healthy one is left."""
        return self._answer is not None and self._answer.is_over

    def keeps(self, item: Any) -> bool:
        """Read an item and return whether it is passed on."""
        fields = _fields_of(item)
        if self._answer is None:
            route = _route_of(fields)
            if route is None:
                return True
            self._answer = Followed(route, self._thresholds, choices=lambda: self._choices)
        if self._answer.drops(fields):
            return False
        self._answer.read(fields)
        return True


def _fields_of(item: Any) -> dict[str, Any]:
    if isinstance(item, dict):
        return item
    for name in ("to_dict", "model_dump"):
        if hasattr(item, name):
            found = getattr(item, name)()
            return found if isinstance(found, dict) else {}
    return {}


def _route_of(fields: dict[str, Any]) -> str | None:
    """Return the route that an item belongs to, or `None` if it does not tell."""
    if str(fields.get("type", "")).startswith("response."):
        return "responses"
    choices = fields.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return None
    return "chat" if "delta" in choices[0] else "completions"


class _Guarded:
    """The attributes of both kinds of streams; all others are those of the wrapped stream."""

    def __init__(self, stream: Any, thresholds: Thresholds | None = None, *, choices: int = 1) -> None:
        self._stream = stream
        self._reading = Reading(thresholds, choices)

    @property
    def verdict(self) -> Verdict | None:
        """The first loop, or `None`."""
        return next(iter(self._reading.verdicts), None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class GuardedStream(_Guarded, Iterator[Any]):
    """A stream of the `openai` client that ends when the answer loops.

    The item that completes the loop is the last one. The wrapped stream is then closed, so that no more tokens are paid
    for, and `verdict` says what was repeated.

    Args:
        stream: what `chat.completions.create(stream=True)`, `completions.create` or `responses.create` returns, or any
            iterator over items of these kinds.
        thresholds: when a text counts as a loop.
        choices: `n` of the request. A choice that loops is dropped until the others have ended.

    >>> events = ({"choices": [{"index": 0, "delta": {"content": " so on and"}}]} for _ in range(10**9))
    >>> stream = GuardedStream(events)
    >>> sum(1 for _ in stream), stream.verdict.unit
    (200, ' so on and')
    """

    def __next__(self) -> Any:
        while not self._reading.is_over:
            item = next(self._stream)
            kept = self._reading.keeps(item)
            if self._reading.is_over:
                self.close()
            if kept:
                return item
        raise StopIteration

    def close(self) -> None:
        """Close the wrapped stream."""
        if hasattr(self._stream, "close"):
            self._stream.close()

    def __enter__(self) -> GuardedStream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class AsyncGuardedStream(_Guarded, AsyncIterator[Any]):
    """An asynchronous stream of the `openai` client that ends when the answer loops; see `GuardedStream`.

    Args:
        stream: an asynchronous iterator over the items of an answer.
        thresholds: when a text counts as a loop.
        choices: `n` of the request.
    """

    async def __anext__(self) -> Any:
        while not self._reading.is_over:
            item = await self._stream.__anext__()
            kept = self._reading.keeps(item)
            if self._reading.is_over:
                await self.close()
            if kept:
                return item
        raise StopAsyncIteration

    async def close(self) -> None:
        """Close the wrapped stream."""
        for name in ("close", "aclose"):
            if hasattr(self._stream, name):
                await getattr(self._stream, name)()
                return

    async def __aenter__(self) -> AsyncGuardedStream:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
