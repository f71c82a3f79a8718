"""`LZPenaltyConfig`: the settings of one sequence, with their bounds, presets and request fields. Needs no arrays."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

from lz_penalty._checks import MAX_EXEMPT, Check, boolean, choice, flag, integer, real, token_ids
from lz_penalty.errors import LZPenaltyError, bad_value, unknown_field

__all__ = ["LZPenaltyConfig"]

FORMULAS = ("paper", "sglang")
LOOKBACKS = ("before_buffer", "adjacent")
MAX_WEIGHT = 100.0
MAX_WINDOW = 65_536
MAX_BUFFER = 4_096
MIN_GATE_WINDOW, MAX_GATE_WINDOW = 4, 4_096
MAX_FIELDS = 1_024


@dataclass(frozen=True, kw_only=True)
class LZPenaltyConfig:
    """Settings of the LZ penalty. The defaults are the paper's.

    Args:
        strength: how many logits one bit of codelength is worth; 0 to 100.
        window_size: how many past tokens are searched; 1 to 65,536.
        buffer_size: the longest match that is looked for; 1 to 4,096.
        formula: "paper" (the closed form) or "sglang" (the formula of the authors' SGLang fork).
        lookback: "before_buffer" (as in the paper, the window ends where the buffer begins) or "adjacent" (as in LZ77,
            the window ends at the newest token and a copy may overlap its source). `None` follows the formula.
        min_match_length: a copy of fewer tokens is coded as a literal; 1 to buffer_size + 1. `None` turns codelengths
            off and leaves only escalation.
        escalation: extra bits against the token that would continue a loop, growing with every copy; 0 (off) to 100.
        loop_window: how many past tokens are searched for loops; 1 to 65,536.
        gate_low: charge no codelength while the copy share, the share of recent tokens that merely repeat, is at most
            this; 0 to 1. `None`, here and in `gate_high`, means that there is no gate. Escalation is not gated.
        gate_high: charge whole codelengths from this copy share on, and a growing part between the two; above `gate_low`,
            at most 1.
        gate_window: over how many past tokens the copy share is taken; 4 to 4,096.
        gate_from: the gate stays closed while there are fewer tokens than this; 1 to 4,096. It cannot be later than half of
            `gate_window`. `None` means half of `gate_window`.
        include_prompt: whether the prompt's tokens count.
        exempt_token_ids: ids that are never adjusted; at most 2,047, in a request at most 1,024. Engines add up to 1,023
            special tokens.

    >>> LZPenaltyConfig(strength=0.2).window_size
    512
    >>> LZPenaltyConfig.guarded(strength=0.3).min_match_length
    4
    >>> LZPenaltyConfig(window_size=0)
    Traceback (most recent call last):
    lz_penalty.errors.LZPenaltyError: window_size = 0: must be an integer from 1 to 65536.
    """

    strength: float = 0.15
    window_size: int = 512
    buffer_size: int = 32
    formula: str = "paper"
    lookback: str | None = None
    min_match_length: int | None = 1
    escalation: float = 0.0
    loop_window: int = 4_096
    gate_low: float | None = None
    gate_high: float | None = None
    gate_window: int = 96
    gate_from: int | None = None
    include_prompt: bool = True
    exempt_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check every field and convert it to its plain type."""
        for name, check in _CHECKS.items():
            object.__setattr__(self, name, check(name, getattr(self, name)))
        if self.min_match_length is not None and self.min_match_length > self.buffer_size + 1:
            allowed = f"at most buffer_size + 1 = {self.buffer_size + 1}, the length of the longest copy"
            raise bad_value("min_match_length", self.min_match_length, allowed)
        self._check_gate()
        if self.formula == "sglang":
            if self.lookback == "before_buffer":
                raise bad_value("lookback", self.lookback, "'adjacent' or None with formula='sglang'")
            if self.min_match_length != 1:
                raise bad_value("min_match_length", self.min_match_length, "1 with formula='sglang'")

    def _check_gate(self) -> None:
        low, high = self.gate_low, self.gate_high
        if low is None and high is None:
            return
        if low is None or high is None:
            name, value, other = ("gate_high", high, "gate_low") if low is None else ("gate_low", low, "gate_high")
            raise bad_value(name, value, f"given together with {other}, or not at all")
        if low >= high:
            raise bad_value("gate_low", low, f"below gate_high = {high:g}")
        if self.min_match_length is None:
            raise bad_value(
                "min_match_length", None, "an integer if gate_low and gate_high are given: a gate needs codelengths"
            )

    @property
    def effective_gate_from(self) -> int:
        """The number of tokens from which on the gate can open: `gate_from`, or half of `gate_window` if that is less."""
        half = (self.gate_window + 1) // 2
        return half if self.gate_from is None else min(self.gate_from, half)

    @property
    def effective_lookback(self) -> str:
        """The lookback that applies: `lookback`, or the formula's default if that is `None`."""
        return self.lookback or ("adjacent" if self.formula == "sglang" else "before_buffer")

    # ------------------------------------------------------------ presets

    @classmethod
    def paper(cls, **changes: Any) -> LZPenaltyConfig:
        """Return the paper's closed form with the paper's settings, which are the defaults."""
        return cls(**changes)

    @classmethod
    def sglang(cls, **changes: Any) -> LZPenaltyConfig:
        """Return the settings of the authors' SGLang fork: codelengths per token, prompt not included."""
        return cls(**{"formula": "sglang", "include_prompt": False, **changes})

    @classmethod
    def guarded(cls, **changes: Any) -> LZPenaltyConfig:
        """Return the settings to serve models with: a gate, and escalation against persistent loops.

        Copies of at least four tokens are charged where more than 40 % of the output's last 384 tokens are copied, and in
        full from 50 % on. Of a shorter output, all tokens count, from token 48 on. The prompt does not count. A rule chose
        the numbers on real models: see research/presets/README.md.
        """
        chosen = {
            "strength": 0.4,
            "window_size": 384,
            "lookback": "adjacent",
            "min_match_length": 4,
            "escalation": 1.0,
        }
        gate = {
            "gate_low": 0.4,
            "gate_high": 0.5,
            "gate_window": 384,
            "gate_from": 48,
            "include_prompt": False,
        }
        return cls(**{**chosen, **gate, **changes})

    @classmethod
    def failsafe(cls, **changes: Any) -> LZPenaltyConfig:
        """Return escalation alone: logits outside of loops stay bit-identical."""
        return cls(**{"min_match_length": None, "escalation": 1.0, **changes})

    # ------------------------------------------------------------ requests

    def to_request(self) -> dict[str, Any]:
        """Return the config as flat `lz_*` request fields with JSON values: the closest preset and what differs from it.

        The fields name their preset, so they ask for this config whatever the server's default is.

        >>> LZPenaltyConfig.failsafe(strength=0.2).to_request()
        {'lz_preset': 'failsafe', 'lz_penalty': 0.2}
        """
        changes = {name: self._changes(preset()) for name, preset in PRESETS.items()}
        closest = min(changes, key=lambda name: len(changes[name]))
        return {"lz_preset": closest} | changes[closest]

    def _changes(self, preset: LZPenaltyConfig) -> dict[str, Any]:
        """Return the request fields that turn a preset into this config."""
        changes = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value == getattr(preset, field.name):
                continue
            if value is None:
                value = "none"
            elif isinstance(value, bool):
                value = int(value)
            elif isinstance(value, tuple):
                value = list(value)
            changes["lz_penalty" if field.name == "strength" else "lz_" + field.name] = value
        return changes

    @classmethod
    def from_request(cls, request: Mapping[str, Any], default: LZPenaltyConfig | None = None) -> LZPenaltyConfig | None:
        """Return the config that a request's flat `lz_*` fields ask for; `None` means no penalty.

            no lz_* field              -> default
            lz_preset is given         -> that preset; other fields override single values
            other lz_* fields          -> default with these values
            lz_penalty, and no default -> the paper's settings with this strength; other fields override single values
            neither, and no default    -> an error
            lz_penalty = 0             -> no penalty

        Fields without the prefix `lz_` are ignored. `default` is the server's default.

        >>> LZPenaltyConfig.from_request({"lz_preset": "guarded", "lz_penalty": 0.3}).strength
        0.3
        >>> LZPenaltyConfig.from_request({"lz_penalty": 0.3}, default=LZPenaltyConfig.guarded()).window_size
        384
        >>> LZPenaltyConfig.from_request({"lz_penalty": 0}, default=LZPenaltyConfig()) is None
        True
        >>> LZPenaltyConfig.from_request({"lz_windowsize": 64})
        Traceback (most recent call last):
        lz_penalty.errors.LZPenaltyError: lz_windowsize = 64: unknown field. Did you mean lz_window_size? ...
        """
        given = lz_fields(request)
        for key, value in given.items():
            if key not in REQUEST_FIELDS:
                raise unknown_field(key, value, REQUEST_FIELDS)
        if not given:
            return default

        changes = {}
        for key, value in given.items():
            if key != "lz_preset":
                field = REQUEST_FIELDS[key]
                changes[field] = _REQUEST_CHECKS[field](key, _from_json(key, value))
        if "lz_preset" in given:
            base = PRESETS[choice(*PRESETS)("lz_preset", given["lz_preset"])]()
        elif default is not None:
            base = default
        elif "lz_penalty" in given:
            base = cls()
        else:
            raise LZPenaltyError(
                f"{', '.join(given)}: given without lz_penalty or lz_preset, and there is no server default to refine. "
                "Add lz_penalty (for example 0.15) or lz_preset."
            )
        config = changed(base, changes)
        return config if config.strength else None


PRESETS: dict[str, Callable[..., LZPenaltyConfig]] = {
    name: getattr(LZPenaltyConfig, name) for name in ("paper", "sglang", "guarded", "failsafe")
}
REQUEST_FIELDS = {"lz_penalty": "strength", "lz_preset": "preset"} | {
    "lz_" + field.name: field.name for field in fields(LZPenaltyConfig) if field.name != "strength"
}


_NAMES = {name: key for key, name in REQUEST_FIELDS.items() if name != "preset"}


def changed(base: LZPenaltyConfig, changes: Mapping[str, Any]) -> LZPenaltyConfig:
    """Return a config with the values of a request. An error about two fields together has their names in a request.

    >>> changed(LZPenaltyConfig(), {"gate_low": 0.5})
    Traceback (most recent call last):
    lz_penalty.errors.LZPenaltyError: lz_gate_low = 0.5: must be given together with lz_gate_high, or not at all.
    """
    try:
        return replace(base, **changes)
    except LZPenaltyError as error:
        message = re.sub(rf"\b({'|'.join(_NAMES)})\b", lambda found: _NAMES[found[0]], str(error))
        raise LZPenaltyError(message) from None


def lz_fields(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `lz_*` fields of a request; raise if it has too many fields of any kind.

    >>> lz_fields({"lz_penalty": 0.15, "temperature": 1.0})
    {'lz_penalty': 0.15}
    """
    if not isinstance(request, Mapping):
        raise bad_value("the request", request, 'a dict of fields, such as {"lz_preset": "guarded"}')
    if len(request) > MAX_FIELDS:
        raise LZPenaltyError(f"the request has {len(request)} fields: must be at most {MAX_FIELDS}. Leave some out.")
    return {key: value for key, value in request.items() if isinstance(key, str) and key.startswith("lz_")}


def _from_json(key: str, value: Any) -> Any:
    """Convert 'none' to None: some transports have only flat JSON values."""
    optional = key in ("lz_min_match_length", "lz_lookback", "lz_gate_low", "lz_gate_high", "lz_gate_from")
    return None if optional and isinstance(value, str) and value == "none" else value


_CHECKS: dict[str, Check] = {
    "strength": real(0, MAX_WEIGHT),
    "window_size": integer(1, MAX_WINDOW),
    "buffer_size": integer(1, MAX_BUFFER),
    "formula": choice(*FORMULAS),
    "lookback": choice(*LOOKBACKS, None),
    "min_match_length": integer(1, MAX_BUFFER + 1, optional=True),
    "escalation": real(0, MAX_WEIGHT),
    "loop_window": integer(1, MAX_WINDOW),
    "gate_low": real(0, 1, optional=True),
    "gate_high": real(0, 1, optional=True),
    "gate_window": integer(MIN_GATE_WINDOW, MAX_GATE_WINDOW),
    "gate_from": integer(1, MAX_GATE_WINDOW, optional=True),
    "include_prompt": boolean,
    "exempt_token_ids": partial(token_ids, most=MAX_EXEMPT),
}
_REQUEST_CHECKS = _CHECKS | {"include_prompt": flag, "exempt_token_ids": token_ids}
