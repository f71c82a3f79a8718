"""Ask an OpenAI-compatible server over HTTP, without its client library."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest


def call(url: str, body: Any = None, key: str | None = None, context: ssl.SSLContext | None = None) -> str:
    """Return the answer to a GET, or to a POST of a body: bytes, or anything that JSON can write."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} | ({} if key is None else {"Authorization": f"Bearer {key}"})
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=300, context=context) as answer:
        return answer.read().decode()


def refused(url: str, body: Any, key: str | None = None) -> tuple[int, str]:
    """Return status and body of an answer that must be an error."""
    with pytest.raises(urllib.error.HTTPError) as caught:
        call(url, body, key)
    return caught.value.code, caught.value.read().decode()


def streamed(url: str, body: dict[str, Any], part: Callable[[Any], str], key: str | None = None) -> str:
    """Return the text of a stream: `part` of the first choice of each event."""
    lines = call(url, body | {"stream": True}, key).splitlines()
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    return "".join(part(json.loads(event)["choices"][0]) for event in events[:-1])
