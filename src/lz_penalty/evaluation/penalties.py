"""Make penalties from their names: `guarded`, `paper:0.3`, `guarded:0.2,min_match_length=2`, `dry:0.8`.

Commands and sweeps make every penalty here; `baselines` contains those that are not the LZ penalty.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lz_penalty.config import PRESETS, LZPenaltyConfig
from lz_penalty.errors import LZPenaltyError, closest, show

__all__ = ["Penalty", "family", "is_lz", "penalty", "strength"]


@dataclass(frozen=True)
class Penalty:
    """A penalty with its settings."""

    name: str  # as it was requested
    make: Callable[[Any, int], list[Any]]  # returns transformers' processors for a tokenizer and a prompt's length
    config: LZPenaltyConfig | None = None  # of an LZ penalty; `None` for other penalties and for strength 0


def penalty(name: str) -> Penalty:
    """Return the penalty for `NAME[:VALUE][,FIELD=VALUE ...]`.

    NAME is `none`, an LZ preset or a baseline. VALUE is its strength. The fields are those of `LZPenaltyConfig`.

    >>> penalty("guarded:0.3,min_match_length=2").config.min_match_length
    2
    """
    kind, value, fields = _parts(name)
    if kind == "none":
        if value or fields:
            raise LZPenaltyError(f"penalty {show(name)}: 'none' takes no settings.")
        return Penalty(name, lambda tokenizer, prompt_length: [])
    if kind in PRESETS:
        return _lz_penalty(name, kind, value, fields)
    from lz_penalty.evaluation.baselines import BASELINES, baseline

    known = ["none", *PRESETS, *BASELINES]
    if kind not in BASELINES:
        raise LZPenaltyError(
            f"penalty {show(name)}: unknown. Did you mean {closest(kind, known)}? Known: {', '.join(known)}."
        )
    if fields:
        raise LZPenaltyError(f"penalty {show(name)}: {kind} takes a value alone, such as {kind}:{BASELINES[kind]}.")
    strength = _number(name, value) if value else None
    baseline(kind, strength)  # refuse a bad value now

    def make(tokenizer: Any, prompt_length: int) -> list[Any]:
        return [baseline(kind, strength, prompt_length=prompt_length, pad_token_id=tokenizer.pad_token_id)]

    return Penalty(name, make)


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
    """Return whether the name is that of an LZ penalty, and not `none` or a baseline."""
    return family(name) in PRESETS


def _parts(name: str) -> tuple[str, str, list[str]]:
    """Return NAME, VALUE and the fields."""
    head, *fields = name.split(",")
    kind, _, value = head.partition(":")
    return kind, value, fields


def _lz_penalty(name: str, preset: str, value: str, fields: list[str]) -> Penalty:
    request: dict[str, Any] = {"lz_preset": preset}
    if value:
        request["lz_penalty"] = _number(name, value)
    for field in fields:
        key, equals, text = field.partition("=")
        if not equals:
            raise LZPenaltyError(f"penalty {show(name)}: {show(field)} must be FIELD=VALUE, such as window_size=1024.")
        request["lz_" + key] = text if text.isalpha() or "_" in text else _number(name, text)
    config = LZPenaltyConfig.from_request(request)
    if config is None:
        return Penalty(name, lambda tokenizer, prompt_length: [])

    def make(tokenizer: Any, prompt_length: int) -> list[Any]:
        from lz_penalty.engines.transformers import LZPenaltyLogitsProcessor

        return [LZPenaltyLogitsProcessor(config, tokenizer=tokenizer, prompt_length=prompt_length)]

    return Penalty(name, make, config)


def _number(name: str, text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise LZPenaltyError(f"penalty {show(name)}: {show(text)} must be a number.") from None
