"""Between the flat `lz_*` fields of requests and generation configs and `LZPenaltyConfig`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from lz_penalty.config import REQUEST_FIELDS, LZPenaltyConfig

__all__ = ["all_fields", "lz_fields"]


def lz_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """The `lz_*` fields among others; a known one that is `None` was not given.

    >>> lz_fields({"lz_penalty": 0.15, "lz_preset": None, "temperature": 1.0})
    {'lz_penalty': 0.15}
    """
    return {
        name: value
        for name, value in given.items()
        if name.startswith("lz_") and (value is not None or name not in REQUEST_FIELDS)
    }


def all_fields(config: LZPenaltyConfig | None) -> dict[str, Any]:
    """Every `lz_*` field of a config, or of no penalty, so that nothing is left for a default to fill in.

    >>> LZPenaltyConfig.from_request(all_fields(LZPenaltyConfig.failsafe())) == LZPenaltyConfig.failsafe()
    True
    >>> LZPenaltyConfig.from_request(all_fields(None)) is None
    True
    """
    config = config or LZPenaltyConfig(strength=0)
    plain = {"lz_" + field.name: getattr(config, field.name) for field in fields(config)}
    plain = {name: "none" if value is None else value for name, value in plain.items()}
    return {"lz_preset": "paper", "lz_penalty": plain.pop("lz_strength")} | plain
