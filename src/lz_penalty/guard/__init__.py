"""Watch the answers of models that others serve, and cut those that loop.

`lz-penalty guard` is a proxy in front of any OpenAI-compatible endpoint; `create_app` is the same as an ASGI app and needs
the extra `guard`. In a program, `GuardedStream` and `AsyncGuardedStream` wrap the streams of the `openai` client; they
need no extra. `lz_penalty.guard.litellm` is a callback for the LiteLLM proxy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lz_penalty.guard._settings import GuardSettings
from lz_penalty.guard._watch import Thresholds, Verdict
from lz_penalty.guard._wrapped import AsyncGuardedStream, GuardedStream

if TYPE_CHECKING:
    from starlette.routing import Router

__all__ = ["AsyncGuardedStream", "GuardSettings", "GuardedStream", "Thresholds", "Verdict", "create_app"]


def create_app(settings: GuardSettings) -> Router:
    """Return the guard as an ASGI app: `/health`, `/metrics`, and everything else from upstream.

    Args:
        settings: what the operator sets; `host`, `port`, `max_connections` and `grace_seconds` are the server's.
    """
    from lz_penalty.guard._app import create_app as create

    return create(settings)
