"""Random `lz_*` fields of requests and settings of servers, and the right decision about them."""

from __future__ import annotations

import json
import math
import random
import string
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from lz_penalty import LZPenaltyConfig, LZPenaltyError
from lz_penalty._checks import MAX_TOKEN_ID, MAX_TOKEN_IDS
from lz_penalty.config import (
    FORMULAS,
    LOOKBACKS,
    MAX_BUFFER,
    MAX_GATE_WINDOW,
    MAX_WEIGHT,
    MAX_WINDOW,
    MIN_GATE_WINDOW,
    PRESETS,
    REQUEST_FIELDS,
)
from lz_penalty.engines.server import ServerSettings
from lz_penalty.policy import POLICY_FIELDS, RequestPolicy
from lz_penalty.policy._rules import MAX_COPIES
from tests.support import cases
from tests.support.malformed import malformed

PLAIN = "{}"  # a server without a default, with the usual caps
LONGEST_MESSAGE = 2_000
SERVERS = 300  # different servers, besides the plain one
MOST = 6  # the largest of the hostile sizes, as a power of ten
_NAMES = (*REQUEST_FIELDS, *POLICY_FIELDS)
_ODD_NAMES = ("lz_", "lz__", "LZ_PENALTY", "lz_\x00", "lz_\ud800", "lz_é\n", "other", "", "lz_preset ", "_lz_shared")
_ODD_NUMBERS = (0, 1, -1, 2, 3, 0.5, 1e-300, 5e-324, 1e300, math.nan, math.inf, -math.inf, -0.0, 2**31, 2**63, 10**30)


class Request(NamedTuple):
    """A request, and the expected decision if it is known without the library.

    Attributes:
        fields: its fields; some of them may be foreign.
        server: the settings of the server, as JSON.
        expected: the settings that it must get, `REFUSED`, or `UNKNOWN`.
    """

    fields: dict[Any, Any]
    server: str
    expected: Any


REFUSED, UNKNOWN = "refused", "unknown"


def request(rng: random.Random) -> Request:
    """Return a random request to a random server."""
    server = PLAIN if rng.random() < 0.3 else _server(rng.randrange(SERVERS))
    kind = rng.random()
    if kind < 0.3:
        return _valid(rng, server)
    if kind < 0.45:
        return Request(_policy(rng) | (_chaos(rng) if rng.random() < 0.1 else {}), server, UNKNOWN)
    if kind < 0.7:
        return Request(malformed(1, rng)[0], server, REFUSED if server == PLAIN else UNKNOWN)
    if kind < 0.99:
        return Request(_chaos(rng), server, UNKNOWN)
    if kind < 0.995:
        return Request({}, server, UNKNOWN)
    return Request(_hostile(rng), server, UNKNOWN)


# ---------------------------------------------------------------- what a server may have


@lru_cache(maxsize=None)
def _server(number: int) -> str:
    """Return random settings with which a server can start."""
    rng = random.Random(number)
    while True:
        given: dict[str, Any] = {}
        if rng.random() < 0.7:
            given["default"] = _policy(rng) if rng.random() < 0.4 else _valid(rng, PLAIN).fields
        for name in ("max_window_size", "max_loop_window"):
            if rng.random() < 0.5:
                given[name] = rng.choice((1, 100, 4096, MAX_WINDOW, rng.randint(1, MAX_WINDOW)))
        if rng.random() < 0.5:
            given["max_buffer_size"] = rng.choice((1, 32, MAX_BUFFER, rng.randint(1, MAX_BUFFER)))
        if rng.random() < 0.3:
            given["max_gate_window"] = rng.choice((4, 100, MAX_GATE_WINDOW, rng.randint(4, MAX_GATE_WINDOW)))
        if rng.random() < 0.3:
            given["max_exempt_token_ids"] = rng.choice((0, 3, 100))
        text = json.dumps(given)
        try:
            ServerSettings.from_json(text)
        except LZPenaltyError:
            continue
        return text


@lru_cache(maxsize=None)
def settings_of(server: str) -> ServerSettings:
    """Return the settings of a server."""
    return ServerSettings.from_json(server)


# ---------------------------------------------------------------- what a request may have


def _valid(rng: random.Random, server: str) -> Request:
    config = cases.config(rng, 1000, window=rng.choice((40, 600, 9000)), buffer=rng.choice((9, 64, MAX_BUFFER)))
    fields = config.to_request()
    if "lz_include_prompt" in fields and rng.random() < 0.5:
        fields["lz_include_prompt"] = bool(fields["lz_include_prompt"])
    settings = settings_of(server)
    fits = (
        config.window_size <= settings.max_window_size
        and config.loop_window <= settings.max_loop_window
        and config.buffer_size <= settings.max_buffer_size
        and config.gate_window <= settings.max_gate_window
        and len(config.exempt_token_ids) <= settings.max_exempt_token_ids
    )
    if not fits or isinstance(settings.default, RequestPolicy):
        return Request(fields, server, UNKNOWN)
    return Request(fields, server, config if config.strength else None)


def _policy(rng: random.Random) -> dict[str, Any]:
    """Return fields of a policy, most of them valid."""
    fields: dict[str, Any] = {}
    for name in rng.sample(POLICY_FIELDS, rng.randint(1, 3)):
        if name == "lz_policy":
            fields[name] = "default"
        elif name == "lz_shadow":
            fields[name] = rng.choice((0, 1, True, False))
        elif name.endswith("copies"):
            fields[name] = rng.choice((3, 10, 16, 20.5, 100, "none", 2, 101))
        else:
            fields[name] = rng.choice((*PRESETS, "none"))
    if rng.random() < 0.6:
        fields |= rng.choice(({"lz_penalty": 0.3}, {"lz_preset": "guarded"}, {"lz_penalty": 0}, {"lz_window_size": 90}))
    if rng.random() < 0.3:
        fields["lz_include_prompt"] = rng.choice((0, 1))
    return fields


def _chaos(rng: random.Random) -> dict[Any, Any]:
    """Return random names with random values."""
    fields: dict[Any, Any] = rng.choice(({}, {"lz_penalty": 0.2}, {"lz_preset": "guarded"}, {"lz_policy": "default"}))
    return {**fields, **{_name(rng): _value(rng) for _ in range(rng.randint(1, 4))}}


def _name(rng: random.Random) -> Any:
    kind = rng.random()
    if kind < 0.8:
        return rng.choice(_NAMES)
    if kind < 0.9:
        return _misspelt(rng, rng.choice(_NAMES))
    if kind < 0.99:
        return rng.choice((*_ODD_NAMES, "lz_" + _word(rng)))
    return rng.randrange(9)  # not a string, which JSON cannot express


def _misspelt(rng: random.Random, name: str) -> str:
    """Return the name with an additional letter, or with two letters swapped."""
    place = rng.randrange(3, len(name) - 1)
    if rng.random() < 0.5:
        return name[:place] + name[place + 1] + name[place] + name[place + 2 :]
    return name[:place] + rng.choice("abcxyz_ ") + name[place:]


def _value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.random()
    if kind < 0.45:
        return rng.choice((*_ODD_NUMBERS, rng.randint(0, 5000), rng.uniform(0, 2), 10 ** rng.uniform(-320, 308)))
    if kind < 0.65:
        return rng.choice((*PRESETS, *FORMULAS, *LOOKBACKS, "none", "default", "", "1", _word(rng), "\ud800", "\n"))
    if kind < 0.8 or depth > 3:
        return rng.choice((None, True, False))
    if kind < 0.9:
        return [_value(rng, depth + 1) for _ in range(rng.choice((0, 1, 2, 5)))]
    if kind < 0.95:
        return [rng.randint(0, MAX_TOKEN_ID) for _ in range(rng.choice((1, 10, MAX_TOKEN_IDS, MAX_TOKEN_IDS + 1)))]
    return {_word(rng): _value(rng, depth + 1) for _ in range(rng.choice((0, 1, 3)))}


def _word(rng: random.Random) -> str:
    return "".join(rng.choices(string.ascii_lowercase + "_", k=rng.choice((1, 3, 8, 40))))


def _hostile(rng: random.Random) -> dict[str, Any]:
    """Return fields of which one is very large, up to a million items."""
    size = int(10 ** rng.uniform(2, MOST))
    name = rng.choice(_NAMES)
    kinds = {
        "long unknown name": lambda: {"lz_" + rng.choice(("a", "penalty", "é", "\ud800")) * size: 1},
        "long end": lambda: {name + "_" * size: "x"},
        "long foreign name": lambda: {"a" * size: 1},
        "long value": lambda: {name: rng.choice(("a", "1", "none", "\ud800")) * size},
        "unknown with a long value": lambda: {"lz_unknown": "a" * size},
        "nested": lambda: {name: _nested(size // 10)},
        "unknown, nested": lambda: {"lz_unknown": _nested(size // 10)},
        "foreign, nested": lambda: {"other": _nested(size // 10), "lz_penalty": 0.2},
        "many fields": lambda: {f"lz_{i}": i for i in range(size // 10)},
        "many foreign fields": lambda: {f"a{i}": i for i in range(size // 10)},
        "many ids": lambda: {"lz_penalty": 0.1, name: list(range(size))},
        "many words": lambda: {"lz_penalty": 0.1, "lz_exempt_token_ids": ["a"] * size},
        "many digits": lambda: {"lz_penalty": 0.1, name: 10 ** (size // 10)},
        "digits in a list": lambda: {"lz_penalty": 0.1, "lz_exempt_token_ids": [10 ** (size // 10)]},
        "wide object": lambda: {name: {str(i): [i] for i in range(size // 10)}},
    }
    return kinds[rng.choice(list(kinds))]()


def _nested(depth: int) -> list[Any]:
    out: list[Any] = []
    for _ in range(depth):
        out = [out]
    return out


def as_json(fields: Mapping[Any, Any]) -> bytes:
    """Return the fields as a body, including deep lists and long numbers, which `json.dumps` refuses."""
    return ("{" + ", ".join(f"{json.dumps(str(key))}: {_json(value)}" for key, value in fields.items()) + "}").encode()


def _json(value: Any) -> str:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        return json.dumps(value)
    except RecursionError:
        depth = 0
        while value:
            depth, value = depth + 1, value[0]
        return "[" * depth + "[]" + "]" * depth
    finally:
        sys.set_int_max_str_digits(before)


# ---------------------------------------------------------------- judging


def shape(fields: Mapping[Any, Any]) -> list[Any]:
    """Return what must not change in the caller's fields: names, values, and items of lists."""
    return [(key, id(value), list(value) if isinstance(value, list) else None) for key, value in fields.items()]


def message_problem(message: str) -> str | None:
    """Return what is wrong with an error message, or `None`."""
    if len(message) > LONGEST_MESSAGE:
        return f"the message has {len(message)} characters: must be at most {LONGEST_MESSAGE}"
    if "\n" in message or message != message.encode("utf-8", "replace").decode():
        return f"the message {message[:200]!a} cannot be logged in one line"
    return None


def bounds_problem(asked: Any, server: ServerSettings) -> str | None:
    """Return which accepted settings are out of bounds, or `None`."""
    configs = asked.policy.configs if isinstance(asked, RequestPolicy) else [asked]
    for config in configs:
        if config is not None and config is not server.default and not _within(config, server):
            return f"accepted out of bounds: {config}"
    if isinstance(asked, RequestPolicy):
        rungs = (asked.ladder.end_thinking_copies, asked.ladder.stop_copies)
        if any(rung is not None and not 3 <= rung <= MAX_COPIES for rung in rungs) or type(asked.shadow) is not bool:
            return f"accepted out of bounds: {asked.ladder}, {asked.shadow}"
    return None


def _is_gate(low: float | None, high: float | None, min_match_length: int | None) -> bool:
    if low is None or high is None:
        return low is high
    return min_match_length is not None and 0 <= low < high <= 1


def _within(config: LZPenaltyConfig, server: ServerSettings) -> bool:
    window = server.max_window_size if config.min_match_length is not None else MAX_WINDOW
    loop_window = server.max_loop_window if config.escalation else MAX_WINDOW
    gate_window = server.max_gate_window if config.gate_high is not None else MAX_GATE_WINDOW
    integers = (
        (config.window_size, 1, window),
        (config.buffer_size, 1, server.max_buffer_size if config.min_match_length is not None else MAX_BUFFER),
        (1 if config.min_match_length is None else config.min_match_length, 1, config.buffer_size + 1),
        (config.loop_window, 1, loop_window),
        (config.gate_window, MIN_GATE_WINDOW, gate_window),
        *((token, 0, MAX_TOKEN_ID) for token in config.exempt_token_ids),
    )
    return (
        all(type(value) is int and low <= value <= high for value, low, high in integers)
        and all(type(value) is float and 0 <= value <= MAX_WEIGHT for value in (config.strength, config.escalation))
        and _is_gate(config.gate_low, config.gate_high, config.min_match_length)
        and config.strength > 0
        and len(config.exempt_token_ids) <= server.max_exempt_token_ids
        and type(config.include_prompt) is bool
        and config.formula in FORMULAS
        and config.lookback in (*LOOKBACKS, None)
        and config == replace(config)
    )
