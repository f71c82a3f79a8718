"""`Policy`: which penalty applies in which section, and the request fields that say so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from lz_penalty.checks import choice
from lz_penalty.config import PRESETS, REQUEST_FIELDS, LZPenaltyConfig, unknown_field
from lz_penalty.errors import LZPenaltyError, bad_value, show
from lz_penalty.policy.places import SECTIONS

__all__ = ["POLICY_FIELDS", "Policy", "settings_from_request"]

POLICIES = ("default",)
POLICY_FIELDS = ("lz_policy", *("lz_" + name for name in SECTIONS))
_SHARED = (
    "lz_penalty",
    "lz_window_size",
    "lz_buffer_size",
    "lz_loop_window",
    "lz_include_prompt",
    "lz_exempt_token_ids",
)
COMMON = {key: REQUEST_FIELDS[key] for key in _SHARED}  # they mean the same whatever the preset


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The penalty of each section, `None` for none. The defaults are the default policy.

    Args:
        thinking: between the model's think markers; loops cost most there, and nothing there is copied out.
        answer: everything else.
        code: inside fences; untouched, since code repeats for good reasons.
        tool_call: tool calls, and JSON that begins a line; untouched.
        table: rows that begin with a pipe; only loops are penalised.

    >>> Policy().code is None, Policy(code=LZPenaltyConfig.failsafe()).code.escalation
    (True, 1.0)
    """

    thinking: LZPenaltyConfig | None = LZPenaltyConfig.guarded()  # noqa: RUF009
    answer: LZPenaltyConfig | None = LZPenaltyConfig.paper()  # noqa: RUF009
    code: LZPenaltyConfig | None = None
    tool_call: LZPenaltyConfig | None = None
    table: LZPenaltyConfig | None = LZPenaltyConfig.failsafe()  # noqa: RUF009

    def __post_init__(self) -> None:
        for name, config in zip(SECTIONS, self.configs, strict=True):
            if config is not None and not isinstance(config, LZPenaltyConfig):
                raise bad_value(name, config, "an LZPenaltyConfig, such as LZPenaltyConfig.guarded(), or None")

    @property
    def configs(self) -> list[LZPenaltyConfig | None]:
        """The penalties in the order of `SECTIONS`."""
        return [getattr(self, name) for name in SECTIONS]

    @classmethod
    def everywhere(cls, config: LZPenaltyConfig | None) -> Policy:
        """The same penalty in all sections."""
        return cls(**{field.name: config for field in fields(cls)})


def settings_from_request(
    request: Mapping[str, Any], default: LZPenaltyConfig | None = None
) -> LZPenaltyConfig | Policy | None:
    """What a request's flat `lz_*` fields ask for: a policy if a policy or a section is named in them, else one config.

        no field of a policy      -> LZPenaltyConfig.from_request(request, default)
        lz_policy = "default"     -> the default policy
        lz_thinking = "guarded"   -> that preset in thinking; "none": no penalty there. The same for lz_answer, lz_code,
                                     lz_tool_call and lz_table
        sections not named        -> those of lz_policy, else what the request would get without these fields
        lz_penalty, lz_window_size, lz_buffer_size, lz_loop_window, lz_include_prompt, lz_exempt_token_ids
                                  -> apply in every section that is penalised
        lz_penalty = 0            -> off

    Args:
        request: the request's fields; those without the prefix are somebody else's.
        default: the server's default.

    >>> settings_from_request({"lz_policy": "default", "lz_penalty": 0.3}).answer.strength
    0.3
    >>> policy = settings_from_request({"lz_preset": "guarded", "lz_code": "none"})
    >>> policy.code, policy.answer.min_match_length
    (None, 3)
    >>> settings_from_request({"lz_preset": "guarded"}) == LZPenaltyConfig.guarded()
    True
    >>> settings_from_request({"lz_code": "off"})
    Traceback (most recent call last):
    lz_penalty.errors.LZPenaltyError: lz_code = 'off': must be one of 'paper', 'sglang', 'guarded', 'failsafe', 'none'.
    """
    given = {key: value for key, value in request.items() if isinstance(key, str) and key.startswith("lz_")}
    for key, value in given.items():
        if key not in REQUEST_FIELDS and key not in POLICY_FIELDS:
            raise unknown_field(key, value, (*REQUEST_FIELDS, *POLICY_FIELDS))
    ours = {key: given.pop(key) for key in POLICY_FIELDS if key in given}
    if not ours:
        return LZPenaltyConfig.from_request(given, default)
    base = _of_policy(ours["lz_policy"], given) if "lz_policy" in ours else Policy.everywhere(_plain(given, default))
    shared = {key: value for key, value in given.items() if key in COMMON}
    checked = LZPenaltyConfig.from_request({"lz_preset": "paper"} | shared)
    if checked is None:
        return None  # lz_penalty = 0
    presets = {key[3:]: choice(*PRESETS, "none")(key, ours[key]) for key in ours if key != "lz_policy"}
    configs = {name: getattr(base, name) for name in SECTIONS}
    configs |= {name: None if preset == "none" else PRESETS[preset]() for name, preset in presets.items()}
    changes = {COMMON[key]: getattr(checked, COMMON[key]) for key in shared}
    configs = {name: config and replace(config, **changes) for name, config in configs.items()}
    return Policy(**configs) if any(configs.values()) else None


def _of_policy(name: Any, given: dict[str, Any]) -> Policy:
    choice(*POLICIES)("lz_policy", name)
    for key in given:
        if key not in COMMON:
            raise LZPenaltyError(
                f"{key} = {show(given[key])}: cannot be given together with lz_policy. Name sections instead, for example "
                f"lz_answer = 'guarded'. Allowed with lz_policy: {', '.join((*POLICY_FIELDS[1:], *COMMON))}."
            )
    return Policy()


def _plain(given: dict[str, Any], default: LZPenaltyConfig | None) -> LZPenaltyConfig | None:
    """What sections that are not named get."""
    only_shared = all(key in COMMON and key != "lz_penalty" for key in given)
    return default if only_shared else LZPenaltyConfig.from_request(given, default)
