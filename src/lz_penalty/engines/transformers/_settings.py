"""The flat `lz_*` fields of requests and generation configs, and the settings in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lz_penalty import config
from lz_penalty.policy import POLICY_FIELDS, Asked, settings_from_request

__all__ = ["FIELDS", "asked_of", "lz_fields", "settle"]

FIELDS = (*config.REQUEST_FIELDS, *POLICY_FIELDS)
_SETTLED = "_lz_asked"  # attribute of a generation config


def lz_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `lz_*` fields among others. A known field that is `None` was not given.

    >>> lz_fields({"lz_penalty": 0.15, "lz_preset": None, "temperature": 1.0})
    {'lz_penalty': 0.15}
    """
    return {name: value for name, value in config.lz_fields(given).items() if value is not None or name not in FIELDS}


def settle(generation_config: Any, asked: Asked) -> None:
    """Let a generation config ask for exactly this, whatever its fields, or those of a default, say."""
    for name in lz_fields(vars(generation_config)):
        setattr(generation_config, name, None)
    setattr(generation_config, _SETTLED, (asked,))


def asked_of(generation_config: Any) -> tuple[Asked, bool]:
    """Return what a generation config asks for, and whether it has any such setting, even one that asks for nothing."""
    settled = vars(generation_config).get(_SETTLED)
    if settled is not None:
        return settled[0], True
    given = lz_fields(vars(generation_config))
    return settings_from_request(given), bool(given)
