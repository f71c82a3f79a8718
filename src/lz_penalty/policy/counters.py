"""What policies did in this process, in total: plain numbers, and Prometheus counters where its client is installed.

    add({"lz_loops_seen": 1})
    totals()                    # {"lz_shadow_steps": 0, ..., "lz_loops_seen": 1, ...}

With PROMETHEUS_MULTIPROC_DIR set, as servers with several processes have it, the process with the metrics endpoint shows
the sum over all processes.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any

__all__ = ["COUNTERS", "add", "register", "totals"]

COUNTERS = {
    "lz_shadow_steps": "Tokens chosen in shadow mode.",
    "lz_shadow_changed": "Of these, those at which the penalty would have changed the most likely token.",
    "lz_loops_seen": "Runs of 5 copies and 60 tokens or more, in requests with a ladder or in shadow mode.",
    "lz_loop_tokens": "Tokens that stand in such runs.",
    "lz_thinking_ended": "Times that thinking was ended for a run; in shadow mode, would have been.",
    "lz_stopped": "Generations that were ended for a run; in shadow mode, would have been.",
}

_totals = dict.fromkeys(COUNTERS, 0)
_lock = threading.Lock()


def add(amounts: Mapping[str, int]) -> None:
    """Add to the counters of these names; what is not positive is left out."""
    exported = register()
    with _lock:
        for name, amount in amounts.items():
            if amount > 0:
                _totals[name] += amount
                if exported is not None:
                    exported[name].inc(amount)


def totals() -> dict[str, int]:
    """All counters of this process."""
    with _lock:
        return dict(_totals)


@lru_cache(maxsize=None)
def register() -> dict[str, Any] | None:
    """Make the Prometheus counters, once; `None` without its client. Call it where the endpoint should show zeros too."""
    try:
        client = import_module("prometheus_client")
    except ImportError:
        return None
    return {name: client.Counter(name, text) for name, text in COUNTERS.items()}
