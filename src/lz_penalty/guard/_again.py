"""Ask upstream once more after a loop: to continue the answer, or with settings that loop less."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

from lz_penalty.guard._settings import GuardSettings

__all__ = ["Plugins", "continuation", "safer"]

STYLES: dict[str, str | None] = {"flat": None, "vllm": "vllm_xargs", "sglang": "custom_params"}
SETTINGS = {"lz_preset": "guarded"}
REFUSED = {"lz_penalty": -1}  # no server with the plug-in accepts this
MAX_KNOWN = 64  # models whose upstream was probed

Ask = Callable[[dict[str, Any]], Awaitable[tuple[int, bytes]]]


def continuation(route: str, fields: dict[str, Any], text: str, settings: GuardSettings) -> dict[str, Any] | None:
    """Return the request that continues an answer after `text`, or `None` if it cannot be continued.

    Args:
        route: of the request.
        fields: of the request.
        text: the answer up to the end of the first copy.
        settings: how upstream is told to continue.
    """
    if fields.get("n", 1) != 1 or not text:
        return None
    if route == "completions":
        prompt = fields.get("prompt")
        return fields | {"prompt": prompt + text} if isinstance(prompt, str) and not fields.get("echo") else None
    messages = fields.get("messages")
    if route != "chat" or not isinstance(messages, list):
        return None
    written = {"role": "assistant", "content": text}
    if settings.continue_final_message:
        return fields | {
            "messages": [*messages, written],
            "continue_final_message": True,
            "add_generation_prompt": False,
        }
    return fields | {"messages": [*messages, written, {"role": "user", "content": settings.instruction}]}


def safer(fields: dict[str, Any], style: str | None, settings: GuardSettings) -> dict[str, Any]:
    """Return the request with settings that loop less.

    Args:
        fields: of the request.
        style: where upstream reads `lz_*` fields; `None` if it does not have the plug-in.
        settings: the temperature and frequency penalty for an upstream without the plug-in.
    """
    if style is not None:
        return _with(fields, style, SETTINGS)
    temperature = _at_least(fields.get("temperature"), settings.retry_temperature)
    if "input" in fields:  # the responses API has no frequency penalty
        return fields | {"temperature": temperature}
    penalty = _at_least(fields.get("frequency_penalty"), settings.retry_frequency_penalty)
    return fields | {"temperature": temperature, "frequency_penalty": penalty}


def _at_least(value: Any, least: float) -> float:
    return max(value, least) if isinstance(value, (int, float)) and not isinstance(value, bool) else least


def _with(fields: dict[str, Any], style: str, settings: dict[str, Any]) -> dict[str, Any]:
    name = STYLES[style]
    if name is None:
        return fields | settings
    inner = fields.get(name)
    return fields | {name: (inner if isinstance(inner, dict) else {}) | settings}


class Plugins:
    """Find out where upstream reads `lz_*` fields, once for each route and model.

    Args:
        setting: `auto` to find out; else the answer.
    """

    def __init__(self, setting: str) -> None:
        self._fixed = setting
        self._known: OrderedDict[tuple[str, str], str | None] = OrderedDict()

    async def style(self, route: str, fields: dict[str, Any], ask: Ask) -> str | None:
        """Return `flat`, `vllm` or `sglang`, or `None` if upstream does not have the plug-in.

        Args:
            route: of the request.
            fields: of the request that will be sent.
            ask: sends fields to upstream and returns status and body of the answer.
        """
        if self._fixed != "auto":
            return None if self._fixed == "none" else self._fixed
        key = (route, str(fields.get("model"))[:256])
        if key not in self._known:
            self._known[key] = await _probed(route, fields, ask)
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
        return self._known[key]


async def _probed(route: str, fields: dict[str, Any], ask: Ask) -> str | None:
    """Send a strength of -1 in each style. The plug-in refuses it with the allowed range; others answer with a token."""
    text = {
        "chat": {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1},
        "completions": {"prompt": "Hello", "max_tokens": 1},
        "responses": {"input": "Hello", "max_output_tokens": 16, "stream": False},
    }[route]
    for style in STYLES:
        status, body = await ask(_with({"model": fields.get("model")} | text, style, REFUSED))
        if status in (400, 422) and b"lz_penalty" in body and b"must be a finite number from" in body:
            return style
    return None


def to_bytes(fields: dict[str, Any]) -> bytes:
    """Return a request's or answer's body."""
    return json.dumps(fields).encode("ascii")
