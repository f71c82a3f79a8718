"""Read stored requests in the OpenAI style, and add the penalty's settings where each server reads them. Sends nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lz_penalty._checks import choice
from lz_penalty.detection._records import Problem, Reading, Record, dig, fields_of, parse, read
from lz_penalty.errors import LZPenaltyError, show

__all__ = ["OFF", "REFUSED", "STYLES", "Log", "Stored", "alone", "count", "requests", "with_settings"]

# Where a server reads lz_* fields: beside the others, or in an object.
STYLES: dict[str, str | None] = {"flat": None, "vllm": "vllm_xargs", "sglang": "custom_params"}
OFF = {"lz_penalty": 0}
REFUSED = {"lz_penalty": -1}  # no server with the penalty accepts this
NO_POLICY = {"lz_end_thinking_copies": "none", "lz_stop_copies": "none", "lz_shadow": 0}
WRAPPERS = ("body", "request")  # where a line may contain the request; `body`: OpenAI's batch files
KINDS = {"messages": "chat/completions", "prompt": "completions"}
DROPPED = ("stream", "stream_options", "n", "best_of")  # so that a request has one answer, in one piece


@dataclass(frozen=True)
class Log:
    """How to read a log.

    Args:
        request: where a line contains the request, such as `data.request`; by default the line itself, its `body` or
            its `request`.
        expected: where a line contains the expected answer, if it does.
        model: the model to ask instead of the requests' own.
        changes: fields that replace those of the requests, such as `temperature`; `None` removes a field.
    """

    request: str | None = None
    expected: str | None = None
    model: str | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for path in (self.request, self.expected):
            if path is not None:
                Reading(field=path)  # refuse a bad path now
        settings = [name for name in self.changes if name.startswith("lz_") or name in STYLES.values()]
        if settings:
            raise LZPenaltyError(
                f"{', '.join(settings)}: not a field to --set; give the penalty with --penalty or --policy."
            )


@dataclass(frozen=True)
class Stored:
    """A request to send again: its line, its path on the server, its body without a penalty, and the expected answer."""

    line: int
    path: str
    body: dict[str, Any]
    expected: str | None = None

    @property
    def key(self) -> str:
        """A hash that distinguishes it from other requests."""
        return hashlib.sha256(json.dumps([self.path, self.body], sort_keys=True).encode()).hexdigest()[:16]

    @property
    def sampled(self) -> bool:
        """Whether two answers may differ by chance alone; the default temperature is 1."""
        return self.body.get("temperature", 1) != 0 and self.body.get("top_k") != 1


def requests(source: str, log: Log) -> Iterator[Stored | Problem]:
    """Yield the requests of a file of JSON lines, which may be compressed; a line without a request is a `Problem`."""
    for record in read(source, Reading(format="jsonl")):
        yield record if isinstance(record, Problem) else _stored(record, log)


def count(source: str, log: Log) -> int:
    """Return the number of requests and problems; raise if no request has the expected answer where the log says it is."""
    total = read_well = answered = 0
    for one in requests(source, log):
        total += 1
        if isinstance(one, Stored):
            read_well += 1
            answered += one.expected is not None
    if log.expected is not None and read_well and not answered:
        lines = (parse(record) for record in read(source, Reading(format="jsonl")) if isinstance(record, Record))
        first = next(line for line in lines if not isinstance(line, Problem))
        raise LZPenaltyError(
            f"--expected {show(log.expected)}: 0 of {read_well:,} answers could be checked: no line of {source} has this field "
            f"({fields_of(first)}). Give another field, or leave --expected out."
        )
    return total


def _stored(record: Record, log: Log) -> Stored | Problem:
    def wrong(message: str) -> Problem:
        return Problem(record.source, record.line, message)

    found = parse(record)
    if isinstance(found, Problem):
        return found
    body = dig(found, log.request) if log.request else _body(found)
    if not isinstance(body, dict):
        return wrong(
            f"there is no request with messages or a prompt ({fields_of(found)}); say where it is with --request."
        )
    body = {name: value for name, value in {**body, **log.changes}.items() if value is not None and name not in DROPPED}
    kind = next((name for name in KINDS if name in body), None)
    if kind is None:
        return wrong(f"the request has neither messages nor prompt ({fields_of(body)}).")
    if kind == "prompt" and isinstance(body["prompt"], list) and not all(isinstance(i, int) for i in body["prompt"]):
        return wrong("prompt is a list of prompts; store each in a request of its own.")
    model = log.model or body.get("model")
    if not isinstance(model, str):
        return wrong("the request names no model; name one with --model.")
    expected = dig(found, log.expected) if log.expected else None
    assert record.line is not None  # of JSON lines
    said = None if expected is None else expected if isinstance(expected, str) else json.dumps(expected)
    return Stored(record.line, KINDS[kind], _without_settings(body) | {"model": model}, said)


def _body(found: Any) -> Any:
    if not isinstance(found, dict) or any(name in found for name in KINDS):
        return found
    return next((found[name] for name in WRAPPERS if isinstance(found.get(name), dict)), None)


def _without_settings(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body without any `lz_*` fields."""
    plain = {name: value for name, value in body.items() if not name.startswith("lz_")}
    for place in STYLES.values():
        if place is not None and isinstance(plain.get(place), dict):
            plain[place] = {name: value for name, value in plain[place].items() if not name.startswith("lz_")}
            if not plain[place]:
                del plain[place]
    return plain


def alone(style: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings, with the server's ladder and shadow mode off unless the settings name them.

    The style `flat` is left unchanged: servers of this style may refuse these fields.

    >>> alone("vllm", {"lz_policy": "default", "lz_stop_copies": 20})
    {'lz_end_thinking_copies': 'none', 'lz_stop_copies': 20, 'lz_shadow': 0, 'lz_policy': 'default'}
    """
    return {**(NO_POLICY if STYLES[style] is not None else {}), **settings}


def with_settings(body: Mapping[str, Any], style: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body with the settings where a server of this style reads them.

    >>> with_settings({"prompt": "Hi"}, "vllm", {"lz_preset": "guarded"})
    {'prompt': 'Hi', 'vllm_xargs': {'lz_preset': 'guarded'}}
    """
    place = STYLES[choice(*STYLES)("style", style)]
    if place is None:
        return {**body, **settings}
    return {**body, place: {**body.get(place, {}), **settings}}
