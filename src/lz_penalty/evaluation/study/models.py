"""Make inspect-ai's model for a model of a sweep: in this process, or on a server that answers and has the penalty."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from inspect_ai.model import GenerateConfig, Model, get_model

from lz_penalty.errors import LZPenaltyError
from lz_penalty.evaluation.replay.sending import Endpoint, FailedError, address
from lz_penalty.evaluation.study.local import PROVIDER
from lz_penalty.evaluation.study.sweep import JudgeEntry, ModelEntry

__all__ = ["has_penalty", "living", "local_or_provider", "make_judge", "on_endpoint"]

T = TypeVar("T")
PATIENCE = 10.0  # seconds that a server may take to answer the first request


def local_or_provider(entry: ModelEntry) -> Model:
    """Return a model that has no endpoints in the sweep: one in this process, or one of another provider."""
    if entry.kind == "inspect":
        return get_model(entry.model, config=_patience(entry, entry.connections))
    config = GenerateConfig(max_connections=2 * entry.batch * entry.workers)  # also those that wait for a batch
    model = get_model(f"{PROVIDER}/{entry.model}", config=config, dtype=entry.dtype, chat=entry.chat)
    api: Any = model.api
    api.configure(entry.device, entry.batch, entry.workers)
    api.load()  # now, so that a model that cannot be loaded gives one error and not one for every sample
    return model


def on_endpoint(entry: ModelEntry, endpoint: str) -> Model:
    """Return the model on one of its servers, through inspect's OpenAI-compatible provider."""
    return get_model(
        f"openai-api/{entry.kind}/{entry.model}",
        base_url=address(endpoint),
        api_key=os.environ.get(entry.key_variable) or "none",
        config=_patience(entry, entry.connections * len(entry.endpoints)),
    )


def _patience(entry: ModelEntry, connections: int) -> GenerateConfig:
    return GenerateConfig(max_retries=entry.max_retries, timeout=entry.timeout, max_connections=connections)


def make_judge(entry: JudgeEntry) -> Model:
    """Return the model of the role `grader`."""
    return get_model(
        entry.model,
        base_url=entry.base_url,
        api_key=os.environ.get(entry.key_variable),
        config=GenerateConfig(max_retries=3, timeout=300),
    )


def living(entry: ModelEntry) -> tuple[list[str], list[str]]:
    """Return the endpoints that answer, and one error for each of the others."""
    alive, dead = [], []
    for endpoint in entry.endpoints:
        try:
            _ask(entry, endpoint, PATIENCE, Endpoint.check_alive)
            alive.append(endpoint)
        except (FailedError, LZPenaltyError) as error:
            dead.append(f"model {entry.name!r}: endpoint {endpoint} is dead: {error}")
    return alive, dead


def has_penalty(entry: ModelEntry, endpoint: str) -> bool:
    """Return whether a server refuses a strength of -1. A server that accepts it does not have the penalty."""
    body = {"model": entry.model, "messages": [{"role": "user", "content": "Hello"}]}
    try:
        return _ask(
            entry, endpoint, 12 * PATIENCE, lambda it: it.refuses_bad_settings("chat/completions", body, entry.kind)
        )
    except FailedError:
        return False


def _ask(entry: ModelEntry, endpoint: str, timeout: float, ask: Callable[[Endpoint], Awaitable[T]]) -> T:
    """Return the result of `ask` for a server that may take `timeout` seconds."""

    async def run() -> T:
        async with Endpoint(endpoint, key_variable=entry.key_variable, timeout=timeout, retries=0) as server:
            return await ask(server)

    return asyncio.run(run())
