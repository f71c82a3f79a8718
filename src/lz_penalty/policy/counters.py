"""Count what the penalty and policies did in this process: plain numbers, and Prometheus counters if its client is there.

    add({"lz_loops_seen": 1})
    totals()                    # {"lz_shadow_steps": 0, ..., "lz_loops_seen": 1, ...}

The names and their meanings are the same in every engine. `lz_loops_seen` is the metric `lz_penalty:loops_seen_total`. If
PROMETHEUS_MULTIPROC_DIR is set, as in servers with several processes, the metrics endpoint shows the sum over all processes.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any, Literal

__all__ = ["COUNTERS", "REQUESTS", "add", "count_request", "register", "totals"]

COUNTERS = {
    "lz_shadow_steps": "Tokens chosen in shadow mode.",
    "lz_shadow_changed": "Tokens in shadow mode at which the penalty would have changed the most likely token.",
    "lz_loops_seen": "Loops: runs of 5 copies and 60 tokens or more. In requests with a ladder or in shadow mode; in all "
    "penalised requests if the server counts loops.",
    "lz_loops_left": "Loops that the text left again.",
    "lz_loop_tokens": "Tokens in loops.",
    "lz_thinking_ended": "How often a run ended thinking, or would have ended it in shadow mode.",
    "lz_stopped": "Generations that a run ended, or would have ended in shadow mode.",
}
REQUESTS = "lz_requests"

_totals = dict.fromkeys(COUNTERS, 0)
_lock = threading.Lock()


def add(amounts: Mapping[str, int]) -> None:
    """Add these amounts to the counters; amounts that are not positive are ignored."""
    exported = register()
    with _lock:
        for name, amount in amounts.items():
            if amount > 0:
                _totals[name] += amount
                if exported is not None:
                    exported[name].inc(amount)


def count_request(settings: Literal["penalised", "none", "refused"]) -> None:
    """Count a request that a server receives, by its settings; one with only a ladder or shadow mode is "penalised"."""
    exported = register()
    if exported is not None:
        exported[REQUESTS].labels(settings).inc()


def totals() -> dict[str, int]:
    """Return all counters of this process."""
    with _lock:
        return dict(_totals)


@lru_cache(maxsize=None)
def register() -> dict[str, Any] | None:
    """Create the Prometheus counters once; `None` without its client. Call it early to make the endpoint show zeros."""
    try:
        client = import_module("prometheus_client")
    except ImportError:
        return None
    found = {name: client.Counter(_metric(name), text) for name, text in COUNTERS.items()}
    found[REQUESTS] = client.Counter(_metric(REQUESTS), "Requests by their lz_* settings.", ["settings"])
    return found


def _metric(name: str) -> str:
    return "lz_penalty:" + name.removeprefix("lz_")
