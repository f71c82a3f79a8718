"""End a stream of the responses API: its own event types, with the texts that were sent."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["ResponsesEnding"]

MAX_ITEMS = 64
MAX_TEXT = 2**20  # characters that are stored
_SMALL = 64 * 1024  # characters of the stored response object
_PARTS = {"response.output_text.delta": "output_text", "response.reasoning_text.delta": "reasoning_text"}


class ResponsesEnding:
    """Collect what the last events of a response need."""

    def __init__(self) -> None:
        self._left = MAX_TEXT
        self._response: dict[str, Any] = {}
        self._items: dict[int, dict[str, Any]] = {}
        self._texts: dict[tuple[int, int, str], str] = {}
        self._arguments: dict[int, str] = {}
        self._done: set[int] = set()
        self._sequence = -1

    def read(self, event: dict[str, Any]) -> None:
        """Read one event."""
        kind, index = event.get("type"), event.get("output_index")
        if type(event.get("sequence_number")) is int:
            self._sequence = event["sequence_number"]
        if kind in ("response.created", "response.in_progress") and isinstance(event.get("response"), dict):
            if len(json.dumps(event["response"])) <= _SMALL:
                self._response = event["response"]
        elif type(index) is not int or len(self._items) > MAX_ITEMS:
            return
        elif kind in ("response.output_item.added", "response.output_item.done"):
            if isinstance(event.get("item"), dict):
                self._items[index] = event["item"]
            if kind == "response.output_item.done":
                self._done.add(index)
        elif isinstance(event.get("delta"), str):
            self._append(str(kind), index, event)

    def _append(self, kind: str, index: int, event: dict[str, Any]) -> None:
        piece = event["delta"][: max(0, self._left)]
        self._left -= len(piece)
        if kind in _PARTS:
            number = event.get("content_index")
            key = (index, number if type(number) is int else 0, _PARTS[kind])
            self._texts[key] = self._texts.get(key, "") + piece
        elif kind == "response.function_call_arguments.delta":
            self._arguments[index] = self._arguments.get(index, "") + piece

    def ending(self, finish_reason: str, more: dict[str, Any]) -> bytes:
        """Return the events that close the open items and the response."""
        out = []
        for index in sorted(self._items.keys() - self._done):
            self._items[index] = self._closed(index)
            fields = {"output_index": index, "item": self._items[index]}
            out.append(self._event("response.output_item.done", fields))
        complete = finish_reason == "stop"
        reason = {"length": "max_output_tokens"}.get(finish_reason, finish_reason)
        response = self._response | {
            "status": "completed" if complete else "incomplete",
            "incomplete_details": None if complete else {"reason": reason},
            "output": [self._items[index] for index in sorted(self._items)],
        }
        name = "response.completed" if complete else "response.incomplete"
        out.append(self._event(name, {"response": response | more} | more))
        return b"".join(out)

    def _closed(self, index: int) -> dict[str, Any]:
        item = self._items[index] | {"status": "incomplete"}
        parts = sorted((number, kind, text) for (owner, number, kind), text in self._texts.items() if owner == index)
        if parts:
            item["content"] = [
                {"type": kind, "text": text} | ({"annotations": []} if kind == "output_text" else {})
                for _, kind, text in parts
            ]
        if index in self._arguments:
            item["arguments"] = self._arguments[index]
        return item

    def _event(self, name: str, fields: dict[str, Any]) -> bytes:
        self._sequence += 1
        data = json.dumps({"type": name, "sequence_number": self._sequence} | fields)
        return f"event: {name}\ndata: {data}\n\n".encode()
