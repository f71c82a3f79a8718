"""Follow one streamed answer: which bytes are passed on, where it loops, and how it is ended. Does no input or output."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from typing import Any

from lz_penalty.guard._events import Splitter, data_of, finished, number_of, parts_of_event, to_fields
from lz_penalty.guard._responses import ResponsesEnding
from lz_penalty.guard._watch import Answer, Part, Thresholds, Verdict

__all__ = ["FIELD", "Stream", "event_of"]

FIELD = "lz_guard"  # the extra field of an event or answer that the guard changed
MAX_CHOICES = 1_024  # whose end is remembered
_HEAD = ("id", "object", "created", "model", "system_fingerprint")


class Stream:
    """One streamed answer.

    A healthy stream leaves as it came. Once a choice loops, its further events are dropped. When no healthy choice is
    left, the answer is over (`is_over`), and `ending` writes the last events.

    Args:
        route: `chat`, `completions` or `responses`.
        thresholds: when a text counts as a loop.
        max_event: bytes of the longest event that is examined.
        cuts: `False` only records loops.
        keeps: characters of each choice's content that are stored, for a continuation.
        choices: returns the number of choices that the request asked for.
    """

    def __init__(
        self,
        route: str,
        thresholds: Thresholds,
        max_event: int,
        *,
        cuts: bool = True,
        keeps: int = 0,
        choices: Callable[[], int] = lambda: 1,
    ) -> None:
        self.route = route
        self.verdicts: list[Verdict] = []
        self.is_over = False
        self.events = self.unparsed = 0
        self.text = ""  # of choice 0, if it is kept
        self.complete = True  # whether `text` is the whole content of choice 0
        self._usage: Any = None
        self._cuts, self._keeps, self._choices = cuts, keeps, choices
        self._answer = Answer(thresholds)
        self._splitter = Splitter(max_event)
        self._head: dict[str, Any] = {}
        self._seen, self._ended, self._looped = set[int](), set[int](), set[int]()
        self._responses = ResponsesEnding(keeps or 2**20) if route == "responses" else None

    @property
    def looped(self) -> bool:
        """Whether a choice looped and is to be cut."""
        return bool(self._looped)

    @property
    def pending(self) -> bool:
        """Whether the bytes that were passed on end in the middle of an event."""
        return bool(self._splitter.pending or self._splitter.skips)

    @property
    def long(self) -> int:
        """The number of events that were too long to examine."""
        return self._splitter.long

    @property
    def unwatched(self) -> bool:
        """Whether the answer had more choices or tool calls than are watched."""
        return self._answer.unwatched

    def feed(self, chunk: bytes) -> bytes:
        """Read the next bytes from upstream and return those that the client gets."""
        filters = bool(self._looped)  # once a choice loops, only complete events are passed on
        out, last = list[bytes](), 0
        held = self._splitter.pending if filters else b""
        for event, end in self._splitter.feed(chunk):
            if not filters:
                self._read(event)
                if self._looped:
                    filters = True
                    out.append(chunk[:end])
            elif event is None:
                out.append(held + chunk[last:end])
            elif not self._is_dropped(event):
                out.append(event)
                self._read(event)
            held, last = b"", end
            if self.is_over:
                break
        if not filters:
            return chunk
        if self._splitter.skips and not self.is_over:
            out.append(held + chunk[last:])
        return b"".join(out)

    def _read(self, event: bytes | None) -> None:
        """Examine one event."""
        self.events += 1
        if event is None:
            return
        data = data_of(event)
        if not data or data == b"[DONE]":
            return
        fields = to_fields(data)
        if fields is None:
            self.unparsed += 1
            return
        if self._responses is not None:
            self._responses.read(fields)
        elif not self._head:
            self._head = {name: fields[name] for name in _HEAD if _is_small(fields.get(name))}
        if fields.get("usage"):
            self._usage = fields["usage"]
        for part in parts_of_event(self.route, fields):
            self._watch(part)
        for choice in finished(self.route, fields):
            if len(self._ended) < MAX_CHOICES:
                self._ended.add(choice)
        if self._looped:
            self._check_whether_over()

    def _watch(self, part: Part) -> None:
        owner = 0 if self._responses is not None else part.choice
        if owner in self._looped:
            return
        if len(self._seen) < MAX_CHOICES:
            self._seen.add(owner)
        if self._keeps and part.channel == "content" and part.choice == 0:
            self.complete = self.complete and len(self.text) + len(part.text) <= self._keeps
            self.text += part.text if self.complete else ""
        verdict = self._answer.feed(part)
        if verdict is None:
            return
        self.verdicts.append(verdict)
        if self._cuts:
            self._looped.add(owner)

    def _check_whether_over(self) -> None:
        healthy = (self._seen | set(range(self._choices()))) - self._looped - self._ended
        self.is_over = not healthy

    def _is_dropped(self, event: bytes) -> bool:
        """Return whether an event has nothing but choices that looped. The end of the stream ends the answer."""
        data = data_of(event)
        if data == b"[DONE]":
            self.is_over = True
            return True
        choices = (to_fields(data) or {}).get("choices")
        if not isinstance(choices, list) or not choices:
            return False
        return all(isinstance(one, dict) and number_of(one, "index") in self._looped for one in choices)

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
        last = [self._chunk([self._choice(index, finish_reason) for index in sorted(self._looped)], {FIELD: about})]
        if with_usage and isinstance(self._usage, dict):
            last.append(self._chunk([], {"usage": self._usage}))
        return b"".join(last) + b"data: [DONE]\n\n"

    def seam(self, about: dict[str, Any]) -> bytes:
        """Return the event between the part that was cut and its continuation."""
        return self._chunk([self._choice(0, None)], {FIELD: about})

    def _choice(self, index: int, finish_reason: str | None) -> dict[str, Any]:
        text: dict[str, Any] = {"delta": {}} if self.route == "chat" else {"text": ""}
        return {"index": index, **text, "logprobs": None, "finish_reason": finish_reason}

    def _chunk(self, choices: Iterable[dict[str, Any]], more: dict[str, Any]) -> bytes:
        kind = "chat.completion.chunk" if self.route == "chat" else "text_completion"
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
