"""The settings of `lz-penalty guard`: their ranges, and how flags, environment and file are combined."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lz_penalty._checks import Check, boolean, choice, integer, real
from lz_penalty._files import read_toml
from lz_penalty.errors import LZPenaltyError, bad_value, unknown_field
from lz_penalty.guard._events import ROUTES
from lz_penalty.guard._watch import Thresholds

__all__ = ["ACTIONS", "ENVIRONMENT", "GuardSettings", "read_settings"]

ACTIONS = ("cut", "continue", "retry", "watch")
FINISH_REASONS = ("stop", "length", "repetition")
PLUGINS = ("auto", "none", "flat", "vllm", "sglang")
ENVIRONMENT = "LZ_PENALTY_GUARD_"
MAX_FILE = 64 * 1024  # bytes
MAX_INSTRUCTION = 2_000  # characters
KIB, MIB = 2**10, 2**20
INSTRUCTION = (
    "Your answer above began to repeat itself and was cut off. Continue it from where it ends. Do not repeat what you "
    "have written; if nothing is left to say, finish with one sentence."
)


def _address(name: str, value: Any) -> str:
    """Check the address of the upstream server and return it without `/v1` and a slash at the end."""
    allowed = "a URL such as https://api.example.com or http://localhost:8000, without user, query and fragment"
    if not isinstance(value, str) or not value.isascii() or not value.isprintable() or " " in value:
        raise bad_value(name, value, allowed)
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError:
        raise bad_value(name, value, allowed) from None
    extra = parts.query or parts.fragment or parts.username is not None or parts.password is not None
    if parts.scheme not in ("http", "https") or not parts.hostname or extra or port == 0:
        raise bad_value(name, "(hidden)" if parts.password is not None else value, allowed)
    return value.rstrip("/").removesuffix("/v1").rstrip("/")


def _text(most: int) -> Check:
    def check(name: str, value: Any) -> str:
        if not isinstance(value, str) or not 0 < len(value) <= most:
            raise bad_value(name, value, f"a text of 1 to {most} characters")
        return value

    return check


def _ca_file(name: str, value: Any) -> str | None:
    if value is not None and not (isinstance(value, str) and Path(value).is_file()):
        raise bad_value(name, value, "the name of a file with certificates in PEM format")
    return value


def _routes(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise bad_value(name, value, "a table such as {chat = 'retry'}")
    for route in value:
        if route not in ROUTES:
            raise LZPenaltyError(f"{name}: {unknown_field(route, value[route], ROUTES)}")
    return {route: choice(*ACTIONS)(f"{name}.{route}", action) for route, action in value.items()}


_CHECKS: dict[str, Check] = {
    "upstream": _address,
    "host": _text(255),
    "port": integer(0, 65_535),
    "action": choice(*ACTIONS),
    "routes": _routes,
    "allow_header": boolean,
    "finish_reason": choice(*FINISH_REASONS),
    "max_period": integer(1, 16_384),
    "min_copies": real(3, 64),
    "min_length": integer(1, 1_000_000),
    "min_length_data": integer(1, 1_000_000),
    "max_body": integer(KIB, 2**30),
    "max_answer": integer(KIB, 64 * MIB),
    "max_event": integer(KIB, 16 * MIB),
    "max_connections": integer(1, 65_536),
    "body_seconds": real(0.1, 86_400),
    "connect_seconds": real(0.1, 86_400),
    "idle_seconds": real(0.1, 86_400),
    "answer_seconds": real(0.1, 604_800),
    "grace_seconds": real(0, 86_400),
    "plugin": choice(*PLUGINS),
    "retry_temperature": real(0, 2),
    "retry_frequency_penalty": real(-2, 2),
    "continue_final_message": boolean,
    "instruction": _text(MAX_INSTRUCTION),
    "ca_file": _ca_file,
}


@dataclass(frozen=True)
class GuardSettings:
    """What an operator sets. An invalid value is refused with the allowed range.

    Args:
        upstream: the address of the only server that is ever contacted, with or without `/v1`.
        host: the address to listen on.
        port: the port; 0 takes a free one.
        action: what happens to an answer that loops: `cut`, `continue`, `retry` or `watch`.
        routes: another action for `chat`, `completions` or `responses`.
        allow_header: whether a request may choose its action with the header `x-lz-guard-action`.
        finish_reason: of answers that were cut: `stop`, `length` or `repetition`.
        max_period: characters of the longest unit that is recognised.
        min_copies: the least number of copies of a loop.
        min_length: the least number of characters of a loop of words.
        min_length_data: the least number of characters of any other loop.
        max_body: bytes of a request's body.
        max_answer: bytes of the longest answer that is examined as a whole; a longer one is passed on.
        max_event: bytes of the longest event that is examined; a longer one is passed on.
        max_connections: connections at a time; more get status 503.
        body_seconds: how long a request's body may take.
        connect_seconds: how long a connection to upstream may take.
        idle_seconds: how long upstream may be silent.
        answer_seconds: how long an answer may take in all.
        grace_seconds: how long running answers may take after a signal to stop.
        plugin: where upstream reads `lz_*` fields: `flat`, `vllm`, `sglang`, `none`, or `auto` to find out.
        retry_temperature: the least temperature of a second request to an upstream without the plug-in.
        retry_frequency_penalty: the least frequency penalty of such a request.
        continue_final_message: whether upstream can continue an assistant's message, as vLLM and SGLang can. If not, a
            user's message asks it to continue.
        instruction: the text of that message.
        ca_file: certificates to check upstream with, instead of the usual ones.
    """

    upstream: str
    host: str = "127.0.0.1"
    port: int = 8400
    action: str = "cut"
    routes: Mapping[str, str] = field(default_factory=dict)
    allow_header: bool = True
    finish_reason: str = "stop"
    max_period: int = Thresholds.max_period
    min_copies: float = Thresholds.min_copies
    min_length: int = Thresholds.min_length
    min_length_data: int = Thresholds.min_length_data
    max_body: int = 16 * MIB
    max_answer: int = 4 * MIB
    max_event: int = 64 * KIB
    max_connections: int = 1_024
    body_seconds: float = 60.0
    connect_seconds: float = 10.0
    idle_seconds: float = 600.0
    answer_seconds: float = 7_200.0
    grace_seconds: float = 30.0
    plugin: str = "auto"
    retry_temperature: float = 0.7
    retry_frequency_penalty: float = 0.5
    continue_final_message: bool = False
    instruction: str = INSTRUCTION
    ca_file: str | None = None

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            object.__setattr__(self, name, check(name, getattr(self, name)))
        self.thresholds  # noqa: B018  checks the values together

    @property
    def thresholds(self) -> Thresholds:
        """When a text counts as a loop."""
        return Thresholds(**{one.name: getattr(self, one.name) for one in fields(Thresholds)})

    def action_of(self, route: str, header: str | None) -> str:
        """Return the action for a request; raise if its header names none."""
        if header is not None and self.allow_header:
            return choice(*ACTIONS)("x-lz-guard-action", header)
        return self.routes.get(route, self.action)


def read_settings(
    flags: Mapping[str, Any], environment: Mapping[str, str] = os.environ, file: Path | None = None
) -> GuardSettings:
    """Combine the settings: a flag wins over the environment, and the environment over the file.

    Args:
        flags: by name; `None` is a flag that was not given.
        environment: `LZ_PENALTY_GUARD_UPSTREAM` and so on; `..._ROUTES` as `chat=retry,responses=watch`.
        file: a TOML file with the names of `GuardSettings`.
    """
    given = dict(_from_file(file)) if file is not None else {}
    given |= _from_environment(environment)
    given |= {name: value for name, value in flags.items() if value is not None}
    if "upstream" not in given:
        raise LZPenaltyError(
            f"upstream is not set: give --upstream URL, {ENVIRONMENT}UPSTREAM, or `upstream` in the file of --config."
        )
    return GuardSettings(**given)


def _from_file(path: Path) -> Mapping[str, Any]:
    given = read_toml(path, MAX_FILE, "--config")
    for name, value in given.items():
        if name not in _CHECKS:
            raise unknown_field(name, value, _CHECKS)
    return given


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for variable, value in environment.items():
        if variable.startswith(ENVIRONMENT):
            name = variable.removeprefix(ENVIRONMENT).lower()
            if name not in _CHECKS:
                raise unknown_field(variable, value, [ENVIRONMENT + one.upper() for one in _CHECKS])
            given[name] = _parsed(variable, name, value)
    return given


def _parsed(variable: str, name: str, value: str) -> Any:
    """Return the value of a variable in the type of its setting."""
    default = {one.name: one.default for one in fields(GuardSettings)}[name]
    if name == "routes":
        pairs = [pair.partition("=") for pair in value.split(",") if pair]
        if not all(sign for _, sign, _ in pairs):
            raise bad_value(variable, value, "routes and actions, such as chat=retry,responses=watch")
        return _routes(variable, {route.strip(): action.strip() for route, _, action in pairs})
    if isinstance(default, bool):
        words = {"true": True, "1": True, "false": False, "0": False}
        if value.lower() not in words:
            raise bad_value(variable, value, "true or false")
        return words[value.lower()]
    if isinstance(default, (int, float)):
        try:
            return type(default)(value)
        except ValueError:
            raise bad_value(variable, value, "a number") from None
    return value
