"""Make penalties from their names: `guarded`, `paper:0.3`, `guarded:0.2,window_size=64`, `policy`, `dry:0.8,breakers=usual`.

Commands and sweeps make every penalty here; `baselines` contains those that are not the LZ penalty.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lz_penalty.config import PRESETS, LZPenaltyConfig
from lz_penalty.errors import LZPenaltyError, bad_value, did_you_mean, show, unknown_field
from lz_penalty.policy import Policy, RequestPolicy, settings_from_request

__all__ = ["POLICY", "Penalty", "family", "is_lz", "penalty", "strength"]

POLICY = "policy"  # the default policy: a penalty for each section
BOOLEANS = {"true": True, "false": False}
DRY_FIELDS = ("allowed_length", "base", "breakers", "last_n")


@dataclass(frozen=True)
class Penalty:
    """A penalty with its settings."""

    name: str  # as it was requested
    make: Callable[[Any, int], list[Any]]  # returns transformers' processors for a tokenizer and a prompt's length
    config: LZPenaltyConfig | None = None  # of an LZ penalty; `None` for policies, other penalties and strength 0
    policy: Mapping[str, Any] | None = None  # the request fields of a policy

    @property
    def lz_fields(self) -> dict[str, Any] | None:
        """The `lz_*` request fields of an LZ penalty or of a policy; `None` for other penalties and for strength 0."""
        if self.policy is not None:
            return dict(self.policy)
        return None if self.config is None else self.config.to_request()

    def request(self, tokenizer: Any) -> dict[str, Any]:
        """Return the arguments of vLLM's `SamplingParams` that ask for this penalty; none for `none`.

        An engine needs `lz_penalty.engines.vllm:LZPenaltyLogitsProcessor` for LZ penalties, and
        `lz_penalty.evaluation.vllm_baselines:BaselineLogitsProcessor` for DRY and the n-gram ban. The others are vLLM's own.

        >>> penalty("paper:0.3").request(tokenizer=None)
        {'extra_args': {'lz_preset': 'paper', 'lz_penalty': 0.3}}
        """
        if self.lz_fields is not None:
            return {"extra_args": self.lz_fields}
        return {key: value for one in self.make(tokenizer, 0) for key, value in one.request().items()}


def penalty(name: str) -> Penalty:
    """Return the penalty for `NAME[:VALUE][,FIELD=VALUE ...]`.

    NAME is `none`, an LZ preset, `policy` or a baseline. VALUE is its strength. Fields may begin with `lz_`, and blanks around
    names and values do not count.

    - The fields of an LZ preset are those of `LZPenaltyConfig`.
    - `policy` is the default policy. Its fields are those of a request: a section with a preset, such as
      `code=failsafe`, or a setting for all sections.
    - The fields of `dry` are `allowed_length`, `base`, `last_n` and `breakers`, which is `usual` (see
      `baselines.usual_breakers`) or `none`. The other baselines have no fields.

    >>> penalty("guarded:0.3,min_match_length=2").config.min_match_length
    2
    >>> penalty("dry:0.8,allowed_length=4,base=1.75,breakers=usual,last_n=1024").name
    'dry:0.8,allowed_length=4,base=1.75,breakers=usual,last_n=1024'
    """
    kind, value, fields = _parts(name)
    if kind == "none":
        if value or fields:
            raise LZPenaltyError(f"penalty {show(name)}: 'none' takes no settings.")
        return Penalty(name, lambda tokenizer, prompt_length: [])
    if kind in PRESETS:
        return _lz_penalty(name, kind, value, fields)
    if kind == POLICY:
        return _policy(name, value, fields)
    from lz_penalty.evaluation.baselines import BASELINES

    known = ["none", *PRESETS, POLICY, *BASELINES]
    if kind not in BASELINES:
        raise LZPenaltyError(f"penalty {show(name)}: unknown.{did_you_mean(kind, known)} Known: {', '.join(known)}.")
    if fields and kind != "dry":
        raise LZPenaltyError(f"penalty {show(name)}: {kind} takes a value alone, such as {kind}:{BASELINES[kind]}.")
    return _baseline(name, kind, value, fields)


def family(name: str) -> str:
    """Return a penalty's name without its settings.

    >>> family("paper:0.15"), family("guarded:0.3,window_size=64"), family("none")
    ('paper', 'guarded', 'none')
    """
    return _parts(name)[0]


def strength(name: str) -> float:
    """Return a penalty's strength; not a number if the name does not give one."""
    value = _parts(name)[1]
    return float(value) if value else math.nan


def is_lz(name: str) -> bool:
    """Return whether the name is that of an LZ penalty or of a policy, and not `none` or a baseline."""
    return family(name) in (*PRESETS, POLICY)


def _parts(name: str) -> tuple[str, str, list[str]]:
    """Return NAME, VALUE and the fields."""
    head, *fields = name.split(",")
    kind, _, value = head.partition(":")
    return kind.strip(), value.strip(), fields


def _lz_penalty(name: str, preset: str, value: str, fields: list[str]) -> Penalty:
    given = {"lz_preset": preset} | _lz_fields(name, value, fields, "window_size=1024")
    with _names_without_prefix():
        config = LZPenaltyConfig.from_request(given)
    if config is None:
        return Penalty(name, lambda tokenizer, prompt_length: [])

    def make(tokenizer: Any, prompt_length: int) -> list[Any]:
        from lz_penalty.engines.transformers import LZPenaltyLogitsProcessor

        return [LZPenaltyLogitsProcessor(config, tokenizer=tokenizer, prompt_length=prompt_length)]

    return Penalty(name, make, config)


def _policy(name: str, value: str, fields: list[str]) -> Penalty:
    request = {"lz_policy": "default"} | _lz_fields(name, value, fields, "code=failsafe")
    with _names_without_prefix():
        asked = settings_from_request(request)
    if isinstance(asked, RequestPolicy) and asked.looks_for_runs:
        raise LZPenaltyError(
            f"penalty {show(name)}: a ladder and shadow mode are not penalties; name sections and settings only."
        )
    policy = asked.policy if isinstance(asked, RequestPolicy) else Policy.everywhere(asked)

    def make(tokenizer: Any, prompt_length: int) -> list[Any]:
        from lz_penalty.engines.transformers import LZPolicyLogitsProcessor

        return [LZPolicyLogitsProcessor(policy, tokenizer=tokenizer, prompt_length=prompt_length)]

    return Penalty(name, make, policy=request)


def _lz_fields(name: str, value: str, fields: list[str], example: str) -> dict[str, Any]:
    """Return the request fields for a strength and for fields, which may have their prefix `lz_`."""
    request: dict[str, Any] = {"lz_penalty": _number(name, value)} if value else {}
    for key, text in _pairs(name, fields, example):
        request["lz_" + key.removeprefix("lz_")] = _value(name, text)
    return request


def _value(name: str, text: str) -> Any:
    if text.lower() in BOOLEANS:
        return BOOLEANS[text.lower()]
    return text if text.isalpha() or "_" in text else _number(name, text)


@contextmanager
def _names_without_prefix() -> Iterator[None]:
    """Name the fields of a request in an error without `lz_`, as a penalty's name has them."""
    try:
        yield
    except LZPenaltyError as error:
        raise LZPenaltyError(re.sub(r"(?<!['\"])\blz_", "", str(error))) from None


def _baseline(name: str, kind: str, value: str, fields: list[str]) -> Penalty:
    from lz_penalty.evaluation.baselines import baseline, usual_breakers

    strength = _number(name, value) if value else None
    settings = _dry_settings(name, fields)
    breaks = settings.pop("breakers", "none") == "usual"
    baseline(kind, strength, **settings)  # refuse a bad value now

    def make(tokenizer: Any, prompt_length: int) -> list[Any]:
        own = settings | {"breakers": usual_breakers(tokenizer)} if breaks else settings
        return [baseline(kind, strength, prompt_length=prompt_length, pad_token_id=tokenizer.pad_token_id, **own)]

    return Penalty(name, make)


def _dry_settings(name: str, fields: list[str]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for key, text in _pairs(name, fields, "base=1.75"):
        if key not in DRY_FIELDS:
            raise unknown_field(key, text, DRY_FIELDS)
        if key == "breakers" and text not in ("usual", "none"):
            raise bad_value(key, text, "'usual' or 'none'")
        settings[key] = text if key == "breakers" else _number(name, text)
    return settings


def _pairs(name: str, fields: list[str], example: str) -> list[tuple[str, str]]:
    """Return the key and the text of each field."""
    for field in fields:
        if "=" not in field:
            raise LZPenaltyError(f"penalty {show(name)}: {show(field)} must be FIELD=VALUE, such as {example}.")
    return [(key.strip(), text.strip()) for key, _, text in (field.partition("=") for field in fields)]


def _number(name: str, text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise LZPenaltyError(f"penalty {show(name)}: {show(text)} must be a number.") from None
