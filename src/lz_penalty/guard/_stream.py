"""Follow one streamed answer: which bytes are passed on, where it loops, and how it is ended. Does no input or output."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

from lz_penalty.guard._events import Splitter, data_of, to_fields
from lz_penalty.guard._followed import Followed
from lz_penalty.guard._responses import ResponsesEnding

__all__ = ["FIELD", "Stream", "event_of"]

FIELD = "lz_guard"  # the extra field of an event or answer that the guard changed
_HEAD = ("id", "object", "created", "model", "system_fingerprint")


class Stream:
    """The bytes of one streamed answer.

    A healthy stream leaves as it came. Once a choice loops, its further events are dropped. When no healthy choice is
    left, the answer is over, and `ending` writes the last events.

    Args:
        answer: follows the events.
        max_event: bytes of the longest event that is examined.
    """

    def __init__(self, answer: Followed, max_event: int) -> None:
        self.answer = answer
        self.events = self.unparsed = 0
        self._splitter = Splitter(max_event)
        self._head: dict[str, Any] = {}
        self._usage: Any = None
        self._responses = ResponsesEnding() if answer.route == "responses" else None

    @property
    def is_over(self) -> bool:
        """Whether a choice looped and no healthy one is left."""
        return self.answer.is_over

    @property
    def pending(self) -> bool:
        """Whether the bytes that were passed on end in the middle of an event."""
        return bool(self._splitter.pending or self._splitter.skips)

    @property
    def long(self) -> int:
        """The number of events that were too long to examine."""
        return self._splitter.long

    def feed(self, chunk: bytes) -> bytes:
        """Read the next bytes from upstream and return those that the client gets."""
        filters = bool(self.answer.looped)  # once a choice loops, only complete events are passed on
        out, last = list[bytes](), 0
        held = self._splitter.pending if filters else b""
        for event, end in self._splitter.feed(chunk):
            kept = self._read(event)
            if not filters and self.answer.looped:
                filters = True
                out.append(chunk[:end])
            elif filters and kept:
                out.append(held + chunk[last:end] if event is None else event)
            held, last = b"", end
            if self.is_over:
                break
        if not filters:
            return chunk
        if self._splitter.skips and not self.is_over:
            out.append(held + chunk[last:])
        return b"".join(out)

    def _read(self, event: bytes | None) -> bool:
        """Examine one event and return whether it is passed on. `None` is an event that is too long."""
        self.events += 1
        data = data_of(event) if event is not None else b""
        if not data:
            return True
        if data == b"[DONE]":
            self.answer.is_over = bool(self.answer.looped)
            return not self.answer.looped
        fields = to_fields(data)
        if fields is None:
            self.unparsed += 1
            return True
        if self.answer.drops(fields):
            return False
        if self._responses is not None:
            self._responses.read(fields)
        elif not self._head:
            self._head = {name: fields[name] for name in _HEAD if _is_small(fields.get(name))}
        self._usage = fields.get("usage") or self._usage
        self.answer.read(fields)
        return True

    def ending(self, finish_reason: str, about: dict[str, Any], *, with_usage: bool) -> bytes:
        """Return the events that end the answer after a cut.

        Args:
            finish_reason: of the choices that looped.
            about: what happened, for the extra field.
            with_usage: whether the request asked for an event with the usage. It is written if upstream has sent numbers
                before: the guard cannot count tokens.
        """
        if self._responses is not None:
            return self._responses.ending(finish_reason, {FIELD: about})
        last = [
            self._chunk([self._choice(index, finish_reason) for index in sorted(self.answer.looped)], {FIELD: about})
        ]
        if with_usage and isinstance(self._usage, dict):
            last.append(self._chunk([], {"usage": self._usage}))
        return b"".join(last) + b"data: [DONE]\n\n"

    def seam(self, about: dict[str, Any]) -> bytes:
        """Return the event between the part that was cut and its continuation."""
        return self._chunk([self._choice(0, None)], {FIELD: about})

    def _choice(self, index: int, finish_reason: str | None) -> dict[str, Any]:
        text: dict[str, Any] = {"delta": {}} if self.answer.route == "chat" else {"text": ""}
        return {"index": index, **text, "logprobs": None, "finish_reason": finish_reason}

    def _chunk(self, choices: Iterable[dict[str, Any]], more: dict[str, Any]) -> bytes:
        kind = "chat.completion.chunk" if self.answer.route == "chat" else "text_completion"
        head = {"id": "lz-guard", "object": kind, "created": int(time.time()), "model": ""} | self._head
        return event_of(head | {"choices": list(choices)} | more)


def event_of(fields: dict[str, Any], name: str | None = None) -> bytes:
    r"""Return a server-sent event.

    >>> event_of({"a": "ä"}, "x")
    b'event: x\ndata: {"a": "\\u00e4"}\n\n'
    """
    return (f"event: {name}\n" if name else "").encode() + f"data: {json.dumps(fields)}\n\n".encode()


def _is_small(value: Any) -> bool:
    return isinstance(value, int) or (isinstance(value, str) and len(value) <= 256)
