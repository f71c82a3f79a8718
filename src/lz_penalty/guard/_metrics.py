"""Count what the guard does, for Prometheus, and write one JSON line per answer. Neither contains texts or keys."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from lz_penalty.guard._watch import Verdict

__all__ = ["JSONLines", "Metrics", "log"]

_LOGGER = logging.getLogger("lz_penalty.guard")
_SECONDS = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1_000, 3_000)


class Metrics:
    """The metrics of one guard, in a registry of its own. All labels have a few fixed values."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(f"lz_guard_{name}", about, labels, registry=self.registry)

        self.requests = counter("requests", "Requests by route and by how they ended.", "route", "outcome")
        self.loops = counter("loops", "Answers that looped.", "route", "channel", "criterion", "action")
        self.events = counter("events", "Server-sent events that were read.")
        self.unexamined = counter("unexamined", "What was passed on without an examination.", "why")
        self.upstream_errors = counter("upstream_errors", "Requests that upstream did not answer properly.", "kind")
        self.again = counter("asked_again", "Second requests after a loop.", "action", "result")
        self.open = Gauge("lz_guard_open_requests", "Requests that are being handled.", registry=self.registry)
        self.seconds = Histogram(
            "lz_guard_seconds", "Time of a request.", ("route",), buckets=_SECONDS, registry=self.registry
        )

    def text(self) -> bytes:
        """Return all metrics in Prometheus' format."""
        return generate_latest(self.registry)

    def looped(self, route: str, action: str, verdicts: list[Verdict]) -> None:
        """Count the loops of one answer."""
        for one in verdicts:
            self.loops.labels(route, one.channel, one.criterion, action).inc()


def log(event: str, **fields: Any) -> None:
    """Write one line."""
    _LOGGER.info(event, extra={"fields": fields})


class JSONLines(logging.Formatter):
    """Write a record as one JSON object. Of an exception only the type is written, because its text may quote an answer."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        now = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        line = {"time": now, "level": record.levelname.lower(), "event": record.getMessage()[:300]}
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = record.exc_info[0].__name__
        return json.dumps(line | getattr(record, "fields", {}))
