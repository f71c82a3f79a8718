"""Read a copy of server-sent events: split the bytes into events, and find the texts in them. Nothing is changed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from lz_penalty.guard._watch import Part

__all__ = [
    "ROUTES",
    "Splitter",
    "data_of",
    "finished",
    "number_of",
    "parts_of_answer",
    "parts_of_event",
    "route_of",
    "to_fields",
]

ROUTES = {"chat": "/chat/completions", "completions": "/completions", "responses": "/responses"}

_END = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")  # an empty line ends an event
_LONGEST_END = 4  # bytes
_REASONING = ("reasoning_content", "reasoning", "thinking")
_DELTAS = {
    "response.output_text.delta": ("content", "content_index"),
    "response.refusal.delta": ("content", "content_index"),
    "response.reasoning_text.delta": ("reasoning", "content_index"),
    "response.reasoning_summary_text.delta": ("reasoning", "summary_index"),
    "response.function_call_arguments.delta": ("tool", "content_index"),
    "response.mcp_call_arguments.delta": ("tool", "content_index"),
    "response.custom_tool_call_input.delta": ("tool", "content_index"),
}
_ENDS = ("response.completed", "response.incomplete", "response.failed")


def route_of(path: str) -> str | None:
    """Return `chat`, `completions` or `responses` if answers of this path are examined, else `None`.

    >>> [route_of(path) for path in ("/v1/chat/completions", "/v1/completions", "/v1/models")]
    ['chat', 'completions', None]
    """
    return next((name for name, end in ROUTES.items() if path.endswith(end)), None)


class Splitter:
    """Split a stream of bytes into events of a bounded size.

    Args:
        most: bytes of the longest event that is collected; a longer one is only counted.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._pending = b""  # the begin of an event, or the last bytes of one that is too long
        self._skips = False
        self.long = 0  # events that were too long

    @property
    def pending(self) -> bytes:
        """The begin of an event that has not ended; empty if the event is too long already."""
        return b"" if self._skips else self._pending

    @property
    def skips(self) -> bool:
        """Whether the bytes at the end belong to an event that is too long."""
        return self._skips

    def feed(self, chunk: bytes) -> Iterator[tuple[bytes | None, int]]:
        """Yield each event that ends in this chunk, and where in the chunk it ends. `None` for one that is too long.

        >>> splitter = Splitter(100)
        >>> list(splitter.feed(b"data: 1\\n\\nda")), list(splitter.feed(b"ta: 2\\r\\n\\r\\n"))
        ([(b'data: 1\\n\\n', 9)], [(b'data: 2\\r\\n\\r\\n', 9)])
        """
        before = len(self._pending)
        whole = self._pending + chunk if before else chunk
        start = 0
        for found in _END.finditer(whole, max(0, before - _LONGEST_END + 1)):
            end = found.end()
            too_long = self._skips or end - start > self._most
            self.long += too_long and not self._skips
            yield None if too_long else whole[start:end], end - before
            start, self._skips = end, False
        rest = whole[start:]
        if len(rest) > self._most or (self._skips and rest):
            self.long += not self._skips
            self._skips, rest = True, rest[-_LONGEST_END + 1 :]
        self._pending = rest


def data_of(event: bytes) -> bytes:
    r"""Return the data of an event.

    >>> data_of(b"event: x\r\ndata: 1\r\ndata:2\r\n\r\n"), data_of(b": comment\n\n")
    (b'1\n2', b'')
    """
    if event.startswith(b"data: ") and event.count(b"\n") == 2 and b"\r" not in event:
        return event[6:-2]
    lines = (line[5:] for line in event.splitlines() if line.startswith(b"data:"))
    return b"\n".join(line.removeprefix(b" ") for line in lines)


def to_fields(data: bytes) -> dict[str, Any] | None:
    """Return a JSON object, or `None` if this is something else."""
    try:
        found = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def parts_of_event(route: str, event: dict[str, Any]) -> Iterator[Part]:
    """Yield the pieces of text of one event."""
    if route == "responses":
        kind = event.get("type")
        channel, name = _DELTAS.get(kind, ("", "")) if isinstance(kind, str) else ("", "")
        if channel and isinstance(event.get("delta"), str):
            yield Part(number_of(event, "output_index"), channel, number_of(event, name), event["delta"])
        return
    for choice in _objects(event.get("choices")):
        index = number_of(choice, "index")
        if route == "completions":
            yield from _texts(index, "content", choice.get("text"))
        else:
            yield from _message(index, choice.get("delta"))


def finished(route: str, event: dict[str, Any]) -> Iterator[int]:
    """Yield the choices that end with this event."""
    if route == "responses":
        if event.get("type") in _ENDS:
            yield 0
        return
    for choice in _objects(event.get("choices")):
        if choice.get("finish_reason"):
            yield number_of(choice, "index")


def parts_of_answer(route: str, answer: dict[str, Any]) -> Iterator[tuple[Part, dict[str, Any], str]]:
    """Yield each text of a whole answer, with the object and the name of the field that contain it."""
    if route == "responses":
        yield from _items(answer)
        return
    for choice in _objects(answer.get("choices")):
        index = number_of(choice, "index")
        if route == "completions":
            yield from _field(index, "content", 0, choice, "text")
            continue
        message = choice.get("message")
        if not isinstance(message, dict):
            continue
        yield from _field(index, "content", 0, message, "content")
        for name in _REASONING:
            yield from _field(index, "reasoning", 0, message, name)
        for number, call in enumerate(_objects(message.get("tool_calls"))):
            if isinstance(call.get("function"), dict):
                yield from _field(index, "tool", number, call["function"], "arguments")


def _items(answer: dict[str, Any]) -> Iterator[tuple[Part, dict[str, Any], str]]:
    for index, item in enumerate(_objects(answer.get("output"))):
        channel = "reasoning" if item.get("type") == "reasoning" else "content"
        for list_name in ("content", "summary"):
            for number, one in enumerate(_objects(item.get(list_name))):
                yield from _field(index, channel, number, one, "text")
        yield from _field(index, "tool", 0, item, "arguments")


def _field(
    choice: int, channel: str, number: int, owner: dict[str, Any], name: str
) -> Iterator[tuple[Part, dict[str, Any], str]]:
    if isinstance(owner.get(name), str) and owner[name]:
        yield Part(choice, channel, number, owner[name]), owner, name


def _message(index: int, delta: Any) -> Iterator[Part]:
    if not isinstance(delta, dict):
        return
    yield from _texts(index, "content", delta.get("content"))
    for name in _REASONING:
        if delta.get(name):
            yield from _texts(index, "reasoning", delta[name])
            break
    for call in _objects(delta.get("tool_calls")):
        if isinstance(call.get("function"), dict):
            yield from _texts(index, "tool", call["function"].get("arguments"), number_of(call, "index"))


def _texts(index: int, channel: str, text: Any, number: int = 0) -> Iterator[Part]:
    """Yield a text, or the texts in a list of parts, as some servers send."""
    if isinstance(text, str):
        if text:
            yield Part(index, channel, number, text)
    else:
        for one in _objects(text):
            if isinstance(one.get("text"), str):
                yield Part(index, channel, number, one["text"])


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, list):
        yield from (one for one in value if isinstance(one, dict))


def number_of(owner: dict[str, Any], name: str) -> int:
    """Return an integer field, or 0 if it is missing or something else."""
    value = owner.get(name)
    return value if type(value) is int else 0
