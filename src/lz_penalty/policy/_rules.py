"""`RequestPolicy`: the penalty of each section, the ladder, shadow mode, and the request fields for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from lz_penalty._checks import boolean, choice, flag, real
from lz_penalty.config import PRESETS, REQUEST_FIELDS, LZPenaltyConfig, changed, lz_fields
from lz_penalty.errors import LZPenaltyError, bad_value, show, unknown_field
from lz_penalty.policy._places import SECTIONS

__all__ = ["POLICY_FIELDS", "Asked", "Ladder", "Policy", "RequestPolicy", "settings_from_request"]

POLICIES = ("default",)
SECTION_FIELDS = ("lz_policy", *("lz_" + name for name in SECTIONS))
LADDER_FIELDS = ("lz_end_thinking_copies", "lz_stop_copies")
POLICY_FIELDS = (*SECTION_FIELDS, *LADDER_FIELDS, "lz_shadow")
MAX_COPIES = 100.0
_SHARED = (
    "lz_penalty",
    "lz_window_size",
    "lz_buffer_size",
    "lz_loop_window",
    "lz_gate_window",
    "lz_gate_from",
    "lz_include_prompt",
    "lz_exempt_token_ids",
)
COMMON = {key: REQUEST_FIELDS[key] for key in _SHARED}  # they have the same meaning in every preset


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The penalty of each section; `None` means no penalty. The defaults are the default policy.

    In vLLM and SGLang the prompt counts only if it counts in every section that is penalised.

    Args:
        thinking: between the model's think markers, where loops cost most and exact copies matter least.
        answer: everything else, with the same penalty by default.
        code: inside code fences; not penalised by default, because code repeats legitimately.
        tool_call: tool calls, and JSON that begins a line; not penalised by default.
        table: rows that begin with a pipe; by default only loops are penalised.

    >>> Policy().code is None, Policy(code=LZPenaltyConfig.failsafe()).code.escalation
    (True, 1.0)
    """

    thinking: LZPenaltyConfig | None = LZPenaltyConfig.guarded()  # noqa: RUF009
    answer: LZPenaltyConfig | None = LZPenaltyConfig.guarded()  # noqa: RUF009
    code: LZPenaltyConfig | None = None
    tool_call: LZPenaltyConfig | None = None
    table: LZPenaltyConfig | None = LZPenaltyConfig.failsafe(include_prompt=False)  # noqa: RUF009

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
        """Return a policy with one penalty in all sections."""
        return cls(**{field.name: config for field in fields(cls)})


def _check_order(end: float | None, stop: float | None, prefix: str = "") -> None:
    if end is not None and stop is not None and stop <= end:
        allowed = f"more than {prefix}end_thinking_copies = {end:g}, which must come first"
        raise bad_value(f"{prefix}stop_copies", stop, allowed)


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """The numbers of adjacent copies that end thinking or the generation, with or without a penalty. `None` means never.

    A run counts if it has at least 16 tokens; its unit has at most 1,024 tokens.

    Args:
        end_thinking_copies: at this many copies in thinking, the model's end-of-thinking marker is forced; 3 to 100.
        stop_copies: at this many copies anywhere, the generation ends; 3 to 100, more than `end_thinking_copies`.

    >>> Ladder(end_thinking_copies=20, stop_copies=10)
    Traceback (most recent call last):
    lz_penalty.errors.LZPenaltyError: stop_copies = 10.0: must be more than end_thinking_copies = 20, which must come first.
    """

    end_thinking_copies: float | None = None
    stop_copies: float | None = None

    def __post_init__(self) -> None:
        for name in ("end_thinking_copies", "stop_copies"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else real(3, MAX_COPIES)(name, value))
        _check_order(self.end_thinking_copies, self.stop_copies)

    def __bool__(self) -> bool:
        return self != Ladder()


@dataclass(frozen=True, kw_only=True)
class RequestPolicy:
    """The settings of a request that uses any policy field.

    Args:
        policy: the penalty of each section.
        ladder: when to end thinking or the generation.
        shadow: compute and count, but change nothing.
    """

    policy: Policy
    ladder: Ladder = Ladder()
    shadow: bool = False

    def __post_init__(self) -> None:
        for name, kind in (("policy", Policy), ("ladder", Ladder)):
            if not isinstance(getattr(self, name), kind):
                raise bad_value(name, getattr(self, name), f"a {kind.__name__}, such as {kind.__name__}()")
        boolean("shadow", self.shadow)

    @property
    def looks_for_runs(self) -> bool:
        """Whether runs must be detected: for the ladder, or for the counters of shadow mode."""
        return bool(self.ladder) or self.shadow


Asked = LZPenaltyConfig | RequestPolicy | None


def settings_from_request(request: Mapping[str, Any], default: Asked = None) -> Asked:
    """Return the settings that a request's flat `lz_*` fields ask for: a policy only if one config is not enough.

        no lz_* field             -> default
        lz_policy = "default"     -> the default policy
        lz_thinking = "guarded"   -> that preset in thinking; "none": no penalty there. lz_answer, lz_code,
                                     lz_tool_call and lz_table work the same way
        other sections            -> as in lz_policy; without lz_policy, as if no section had been given
        lz_penalty, lz_window_size, lz_buffer_size, lz_loop_window, lz_gate_window, lz_gate_from,
        lz_include_prompt, lz_exempt_token_ids
                                  -> apply in every section that is penalised
        no lz_include_prompt      -> the prompt counts if it counts in all sections that are penalised
        lz_penalty, and no section of `default` is penalised
                                  -> the paper's settings with this strength, in all sections
        lz_penalty = 0            -> no penalty; the ladder still works
        lz_end_thinking_copies, lz_stop_copies, lz_shadow
                                  -> the ladder and shadow mode; by default those of `default`. "none": never

    Fields without the prefix `lz_` are ignored. `default` is the server's default.

    >>> settings_from_request({"lz_policy": "default", "lz_penalty": 0.3}).policy.answer.strength
    0.3
    >>> asked = settings_from_request({"lz_preset": "guarded", "lz_code": "none", "lz_stop_copies": 20})
    >>> asked.policy.code, asked.policy.answer.min_match_length, asked.ladder.stop_copies
    (None, 4, 20.0)
    >>> settings_from_request({"lz_preset": "guarded"}) == LZPenaltyConfig.guarded()
    True
    >>> settings_from_request({"lz_code": "off"})
    Traceback (most recent call last):
    lz_penalty.errors.LZPenaltyError: lz_code = 'off': must be one of 'paper', 'sglang', 'guarded', 'failsafe', 'none'.
    """
    given = lz_fields(request)
    for key, value in given.items():
        if key not in REQUEST_FIELDS and key not in POLICY_FIELDS:
            raise unknown_field(key, value, (*REQUEST_FIELDS, *POLICY_FIELDS))
    if not given:
        return default
    inherited = default if isinstance(default, RequestPolicy) else RequestPolicy(policy=Policy.everywhere(default))
    ladder = _ladder(given, inherited.ladder)
    shadow = flag("lz_shadow", given.pop("lz_shadow", inherited.shadow))
    policy = _penalties(given, inherited.policy)
    if len(set(policy.configs)) > 1 or ladder or shadow:
        return RequestPolicy(policy=policy, ladder=ladder, shadow=shadow)
    return policy.answer


def _ladder(given: dict[str, Any], inherited: Ladder) -> Ladder:
    """Remove the ladder's fields from `given` and return the ladder."""
    rungs = {key: given.pop(key) for key in LADDER_FIELDS if key in given}
    rungs = {
        key: None if isinstance(value, str) and value == "none" else real(3, MAX_COPIES)(key, value)
        for key, value in rungs.items()
    }
    end, stop = (rungs.get("lz_" + name, value) for name, value in vars(inherited).items())
    _check_order(end, stop, "lz_")
    return Ladder(end_thinking_copies=end, stop_copies=stop)


def _penalties(given: dict[str, Any], inherited: Policy) -> Policy:
    """Return the penalty of each section."""
    sections = {key: given.pop(key) for key in SECTION_FIELDS if key in given}
    if not sections:
        return _refined(given, inherited)
    base = _of_policy(sections["lz_policy"], given) if "lz_policy" in sections else _unnamed(given, inherited)
    shared = {key: value for key, value in given.items() if key in COMMON}
    checked = LZPenaltyConfig.from_request({"lz_preset": "paper"} | shared)
    if checked is None:
        return Policy.everywhere(None)  # lz_penalty = 0
    presets = {key[3:]: choice(*PRESETS, "none")(key, sections[key]) for key in sections if key != "lz_policy"}
    configs = {name: getattr(base, name) for name in SECTIONS}
    configs |= {name: None if preset == "none" else PRESETS[preset]() for name, preset in presets.items()}
    changes = {COMMON[key]: getattr(checked, COMMON[key]) for key in shared}
    # Servers store one history per request, with or without the prompt.
    changes.setdefault("include_prompt", all(config.include_prompt for config in configs.values() if config))
    return Policy(**{name: config and changed(config, changes) for name, config in configs.items()})


def _of_policy(name: Any, given: dict[str, Any]) -> Policy:
    choice(*POLICIES)("lz_policy", name)
    for key in given:
        if key not in COMMON:
            raise LZPenaltyError(
                f"{key} = {show(given[key])}: cannot be given together with lz_policy. Set sections instead, for example "
                f"lz_answer = 'guarded'. Allowed with lz_policy: {', '.join((*POLICY_FIELDS[1:], *COMMON))}."
            )
    return Policy()


def _unnamed(given: dict[str, Any], inherited: Policy) -> Policy:
    """Return the penalties of sections that the request does not name; the caller adds the common fields."""
    only_shared = all(key in COMMON and key != "lz_penalty" for key in given)
    return inherited if only_shared else _refined(given, inherited)


def _refined(given: dict[str, Any], inherited: Policy) -> Policy:
    """Apply the fields to every penalised section; to all sections if lz_preset is given or no section is penalised."""
    if not given:
        return inherited
    if "lz_preset" in given or not any(inherited.configs):
        return Policy.everywhere(LZPenaltyConfig.from_request(given))
    # Equal configs are refined once: checking 1,024 exempt ids takes a millisecond.
    distinct = dict.fromkeys(inherited.configs)
    refined = {config: config and LZPenaltyConfig.from_request(given, config) for config in distinct}
    return Policy(**{name: refined[getattr(inherited, name)] for name in SECTIONS})
