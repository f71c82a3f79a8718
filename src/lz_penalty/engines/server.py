"""The settings of a server for all requests: a default, caps, and whether special tokens are penalised.

Configure a server with one environment variable, which reaches every process of every engine:

    LZ_PENALTY_SERVER='{"default": {"lz_preset": "guarded"}, "max_window_size": 2048}'
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from lz_penalty._checks import MAX_TOKEN_ID, MAX_TOKEN_IDS, boolean, integer
from lz_penalty.config import MAX_BUFFER, MAX_GATE_WINDOW, MAX_WINDOW, MIN_GATE_WINDOW, LZPenaltyConfig
from lz_penalty.errors import LZPenaltyError, bad_value, show, shown_name, unknown_field
from lz_penalty.policy import POLICY_FIELDS, Asked, RequestPolicy, settings_from_request

__all__ = ["VARIABLE", "ServerSettings", "server_settings"]

VARIABLE = "LZ_PENALTY_SERVER"
EXAMPLE = '{"default": {"lz_preset": "guarded"}}'


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """The settings that apply to every request of a server.

    Args:
        default: the settings of requests without `lz_*` fields; in JSON, an object of `lz_*` fields, including those of a
            policy. `None` means no penalty.
        max_window_size: the largest allowed `lz_window_size`; limits memory and work per request.
        max_loop_window: the largest allowed `lz_loop_window`.
        max_gate_window: the largest allowed `lz_gate_window`.
        max_buffer_size: the largest allowed `lz_buffer_size`. On a GPU it also limits how many kernels are compiled.
        max_exempt_token_ids: the largest allowed number of ids in `lz_exempt_token_ids`.
        penalise_special_tokens: do not exempt end-of-sequence, thinking and chat-template tokens.
        count_loops: count the loops in penalised outputs; takes about a microsecond per token.
        stop_token_id: vLLM only: a token that the model never generates. If vLLM has no better way, a request that the
            ladder stops ends with this token, which is then its stop reason.
        wait_for_tokens: vLLM only: whether the V1 runner waits for the newest tokens at each step, as with any other processor.
            `False` should save time with small models. That has not been measured: it ran in engines on a CPU, not on a GPU.
    """

    default: Asked = None
    max_window_size: int = 8_192
    max_loop_window: int = 8_192
    max_gate_window: int = 1_024
    max_buffer_size: int = 512
    max_exempt_token_ids: int = MAX_TOKEN_IDS
    penalise_special_tokens: bool = False
    count_loops: bool = False
    stop_token_id: int | None = None
    wait_for_tokens: bool = True

    def __post_init__(self) -> None:
        """Check every field, and the default against the caps."""
        integer(1, MAX_WINDOW)("max_window_size", self.max_window_size)
        integer(1, MAX_WINDOW)("max_loop_window", self.max_loop_window)
        integer(MIN_GATE_WINDOW, MAX_GATE_WINDOW)("max_gate_window", self.max_gate_window)
        integer(1, MAX_BUFFER)("max_buffer_size", self.max_buffer_size)
        integer(0, MAX_TOKEN_IDS)("max_exempt_token_ids", self.max_exempt_token_ids)
        boolean("penalise_special_tokens", self.penalise_special_tokens)
        boolean("count_loops", self.count_loops)
        boolean("wait_for_tokens", self.wait_for_tokens)
        integer(0, MAX_TOKEN_ID, optional=True)("stop_token_id", self.stop_token_id)
        self._check(self.default)

    @classmethod
    def from_json(cls, text: str) -> ServerSettings:
        """Return the settings in a JSON object; `{}` means a server without a default.

        >>> ServerSettings.from_json('{"default": {"lz_preset": "guarded"}}').default.min_match_length
        4
        >>> ServerSettings.from_json('{"defualt": {"lz_preset": "guarded"}}')
        Traceback (most recent call last):
        lz_penalty.errors.LZPenaltyError: LZ_PENALTY_SERVER: defualt = {'lz_preset': 'guarded'}: unknown field. ...
        """
        try:
            given = _parsed(text)
            known = [field.name for field in fields(cls)]
            for key, value in given.items():
                if key not in known:
                    raise unknown_field(key, value, known)
            if "default" in given:
                given["default"] = _default(given["default"])
            return cls(**given)
        except RecursionError:
            raise LZPenaltyError(f"{VARIABLE}: nested too deep. Use at most two levels.") from None
        except LZPenaltyError as error:
            raise LZPenaltyError(f"{VARIABLE}: {error}") from error

    def settings_of(self, request: Mapping[str, Any] | None) -> Asked:
        """Return the settings of a request, `None` for no penalty; see `lz_penalty.policy.settings_from_request`.

        >>> server = ServerSettings(default=LZPenaltyConfig.guarded(), max_window_size=1024)
        >>> server.settings_of({"lz_stop_copies": 20}).ladder.stop_copies
        20.0
        >>> server.settings_of({"lz_policy": "default", "lz_window_size": 2048})
        Traceback (most recent call last):
        lz_penalty.errors.LZPenaltyError: lz_window_size = 2048: must be at most 1024, the cap of this server.
        """
        return self._within(request or {}, settings_from_request)

    def config_of(self, request: Mapping[str, Any] | None) -> LZPenaltyConfig | None:
        """Return the config of a request in an engine without policies; see `LZPenaltyConfig.from_request`.

        >>> server = ServerSettings(default=LZPenaltyConfig.guarded(), max_window_size=1024)
        >>> server.config_of({"lz_penalty": 0}) is None
        True
        >>> server.config_of({"lz_window_size": 2048})
        Traceback (most recent call last):
        lz_penalty.errors.LZPenaltyError: lz_window_size = 2048: must be at most 1024, the cap of this server.
        """
        return self.without_policies()._within(request or {}, LZPenaltyConfig.from_request)

    def with_default(self, given: Any) -> ServerSettings:
        """Return these settings with another default, given as `lz_*` fields; without fields there is no penalty.

        >>> ServerSettings(default=LZPenaltyConfig.paper()).with_default({"lz_preset": "guarded"}).default.min_match_length
        4
        """
        return replace(self, default=_default(given))

    def without_vllm_settings(self) -> ServerSettings:
        """Return these settings; raise if they contain one that only vLLM knows. Other engines call this at start-up."""
        for name, unset in (("stop_token_id", None), ("wait_for_tokens", True)):
            if getattr(self, name) != unset:
                raise LZPenaltyError(
                    f"{VARIABLE}: {name} = {getattr(self, name)}: only vLLM supports it. Leave it out."
                )
        return self

    def without_policies(self, source: str = VARIABLE) -> ServerSettings:
        """Return these settings; raise if they need policies. Engines without policies call this at start-up.

        Args:
            source: where the settings were given, for the message.
        """
        if isinstance(self.default, RequestPolicy):
            raise LZPenaltyError(
                f"{source}: the default has fields of a policy ({', '.join(POLICY_FIELDS)}), which this engine does not "
                "support. Use lz_preset and its fields."
            )
        if self.count_loops:
            raise LZPenaltyError(f"{source}: count_loops = True: this engine does not count loops. Leave it out.")
        return self

    def _within(self, request: Mapping[str, Any], read: Callable[..., Any]) -> Any:
        """Return what a request asks for, and check it against the caps unless it is the default."""
        asked = read(request, self.default)
        if asked is not self.default:
            self._check(asked, request)
        return asked

    def _check(self, asked: Asked, request: Mapping[str, Any] = MappingProxyType({})) -> None:
        for config in _configs(asked):
            self._check_caps(config, request)

    def _check_caps(self, config: LZPenaltyConfig, request: Mapping[str, Any]) -> None:
        """Raise if a size that was requested or has an effect exceeds its cap."""
        for name, cap, matters in (
            ("window_size", self.max_window_size, config.min_match_length is not None),
            ("loop_window", self.max_loop_window, config.escalation),
            ("gate_window", self.max_gate_window, config.gate_high is not None),
            ("buffer_size", self.max_buffer_size, config.min_match_length is not None),
        ):
            size = getattr(config, name)
            if size > cap and (matters or f"lz_{name}" in request):
                raise bad_value(f"lz_{name}", size, f"at most {cap}, the cap of this server")
        ids, cap = len(config.exempt_token_ids), self.max_exempt_token_ids
        if ids > cap:
            raise LZPenaltyError(
                f"lz_exempt_token_ids: {ids} ids given; must be at most {cap}, the cap of this server."
            )


def _configs(asked: Asked) -> list[LZPenaltyConfig]:
    """Return all configs in a request's settings."""
    configs = asked.policy.configs if isinstance(asked, RequestPolicy) else [asked]
    return [config for config in configs if config is not None]


def _parsed(text: str) -> dict[str, Any]:
    """Return the JSON object in a text; raise for anything else, and for a key that occurs twice."""
    allowed = f"a JSON object, such as {EXAMPLE}"
    try:
        given = json.loads(text, object_pairs_hook=_without_duplicates)
    except LZPenaltyError:
        raise
    except ValueError as error:
        raise bad_value("the value", text, allowed, f"It is not JSON: {error}.") from None
    if not isinstance(given, dict):
        raise bad_value("the value", text, allowed)
    return given


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON; raise if a key occurs twice, of which Python would take the last one."""
    given: dict[str, Any] = {}
    for key, value in pairs:
        if key in given:
            raise LZPenaltyError(f"{shown_name(key)}: occurs twice in one object. Write it once.")
        given[key] = value
    return given


def _default(given: Any) -> Asked:
    """Return the default settings from their `lz_*` fields; raise for other fields, which would have no effect."""
    if not isinstance(given, dict):
        raise bad_value("default", given, 'an object of lz_* fields, such as {"lz_preset": "guarded"}')
    for key, value in given.items():
        if not key.startswith("lz_"):
            raise LZPenaltyError(
                f"default: {shown_name(key)} = {show(value)}: unknown field. Use fields that begin with lz_."
            )
    return settings_from_request(given)


@lru_cache(maxsize=None)
def server_settings() -> ServerSettings:
    """Return the settings from the environment, read once per process."""
    return ServerSettings.from_json(os.environ.get(VARIABLE) or "{}")
