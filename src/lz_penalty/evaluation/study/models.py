"""Make inspect-ai's model for a model of a sweep: in this process, or on a server that answers and has the penalty."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from typing import Any

from inspect_ai.model import GenerateConfig, Model, get_model

from lz_penalty.errors import LZPenaltyError
from lz_penalty.evaluation.replay.log import REFUSED
from lz_penalty.evaluation.study.local import PROVIDER
from lz_penalty.evaluation.study.requests import LZ_FIELD
from lz_penalty.evaluation.study.sweep import JudgeEntry, ModelEntry

__all__ = ["living", "local_or_provider", "make_judge", "on_endpoint", "refuses_bad_settings"]

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
        base_url=endpoint,
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
            _call(entry, endpoint, "/models", None)
            alive.append(endpoint)
        except LZPenaltyError as error:
            dead.append(f"model {entry.name!r}: endpoint {endpoint} is dead: {error}")
    return alive, dead


def refuses_bad_settings(entry: ModelEntry, endpoint: str) -> bool:
    """Return whether a server refuses a strength of -1. A server that accepts it does not have the penalty."""
    body: dict[str, Any] = {
        "model": entry.model,
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 1,
        LZ_FIELD[entry.kind]: REFUSED,
    }
    try:
        return _call(entry, endpoint, "/chat/completions", body) == 400
    except LZPenaltyError:
        return False


def _call(entry: ModelEntry, endpoint: str, path: str, body: dict[str, Any] | None) -> int:
    """Return the status of the answer; raise an error if there is no answer or a status of 500 or more."""
    headers = {"Content-Type": "application/json"}
    key = os.environ.get(entry.key_variable)
    if key:
        headers["Authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    try:
        request = urllib.request.Request(endpoint.rstrip("/") + path, data, headers)
        with urllib.request.urlopen(request, timeout=PATIENCE if body is None else 12 * PATIENCE) as response:
            return response.status
    except urllib.error.HTTPError as error:
        if error.code >= 500:
            raise LZPenaltyError(f"status {error.code}") from None
        return error.code
    except (OSError, ValueError) as error:
        raise LZPenaltyError(f"{getattr(error, 'reason', error)}") from None
