"""Policies, and the request fields that ask for them."""

from dataclasses import replace

import pytest

from lz_penalty import LZPenaltyConfig, LZPenaltyError
from lz_penalty import config as config_module
from lz_penalty.policy import SECTIONS, Ladder, Policy, RequestPolicy, settings_from_request
from tests.support.malformed import malformed

PAPER, GUARDED, FAILSAFE = LZPenaltyConfig.paper(), LZPenaltyConfig.guarded(), LZPenaltyConfig.failsafe()
STRONG = replace(PAPER, strength=0.3)
# The prompt counts in all sections or in none.
PAPER_OUTPUT, FAILSAFE_OUTPUT = (replace(config, include_prompt=False) for config in (PAPER, FAILSAFE))


def test_the_default_policy():
    assert Policy() == Policy(thinking=GUARDED, answer=GUARDED, code=None, tool_call=None, table=FAILSAFE_OUTPUT)
    assert settings_from_request({"lz_policy": "default"}) == RequestPolicy(policy=Policy())


@pytest.mark.parametrize("default", [None, GUARDED])
@pytest.mark.parametrize(
    "request_fields",
    [{}, {"temperature": 1.0}, {"lz_penalty": 0.3}, {"lz_preset": "guarded", "lz_window_size": 64}, {"lz_penalty": 0}],
)
def test_without_a_policy_everything_is_as_before(request_fields, default):
    want = LZPenaltyConfig.from_request(request_fields, default)
    assert settings_from_request(request_fields, default) == want


def test_one_config_alone_still_refuses_policies():
    with pytest.raises(LZPenaltyError, match="lz_policy = 'default': unknown field"):
        LZPenaltyConfig.from_request({"lz_policy": "default"})


@pytest.mark.parametrize(
    ("request_fields", "default", "want"),
    [
        ({"lz_thinking": "guarded"}, None, Policy(**dict.fromkeys(SECTIONS) | {"thinking": GUARDED})),
        ({"lz_code": "none"}, GUARDED, replace(Policy.everywhere(GUARDED), code=None)),
        ({"lz_preset": "guarded", "lz_code": "none"}, PAPER, replace(Policy.everywhere(GUARDED), code=None)),
        (
            {"lz_penalty": 0.3, "lz_thinking": "guarded"},
            None,
            replace(
                Policy.everywhere(replace(PAPER, strength=0.3, include_prompt=False)),
                thinking=replace(GUARDED, strength=0.3),
            ),
        ),
        ({"lz_policy": "default", "lz_answer": "paper"}, GUARDED, replace(Policy(), answer=PAPER_OUTPUT)),
        ({"lz_policy": "default", "lz_code": "failsafe"}, None, replace(Policy(), code=FAILSAFE_OUTPUT)),
        (
            {"lz_policy": "default", "lz_window_size": 64, "lz_include_prompt": 1, "lz_exempt_token_ids": [5]},
            None,
            Policy(
                **{
                    name: config and replace(config, window_size=64, include_prompt=True, exempt_token_ids=(5,))
                    for name, config in zip(SECTIONS, Policy().configs, strict=True)
                }
            ),
        ),
        (
            {"lz_thinking": "guarded", "lz_window_size": 64},
            None,
            Policy(**dict.fromkeys(SECTIONS) | {"thinking": replace(GUARDED, window_size=64)}),
        ),
        (
            {"lz_policy": "default", "lz_thinking": "paper", "lz_gate_window": 30},
            None,
            Policy(
                **{
                    name: config and replace(config, gate_window=30)
                    for name, config in zip(SECTIONS, replace(Policy(), thinking=PAPER_OUTPUT).configs, strict=True)
                }
            ),
        ),
        (
            {"lz_code": "none", "lz_preset": "guarded", "lz_gate_low": 0.2, "lz_gate_high": 0.4},
            None,
            replace(Policy.everywhere(replace(GUARDED, gate_low=0.2, gate_high=0.4)), code=None),
        ),
        (
            {"lz_code": "none", "lz_gate_low": 0.2},
            GUARDED,
            replace(Policy.everywhere(replace(GUARDED, gate_low=0.2)), code=None),
        ),
        ({"lz_policy": "default", "lz_penalty": 0}, PAPER, None),
        ({"lz_thinking": "guarded", "lz_penalty": 0}, None, None),
        ({"lz_thinking": "none"}, None, None),
        (dict.fromkeys(["lz_" + name for name in SECTIONS], "none"), PAPER, None),
    ],
)
def test_requests(request_fields, default, want):
    got = settings_from_request(request_fields, default)
    assert got == (want and RequestPolicy(policy=want))


def asked(policy, end=None, stop=None, shadow=False):
    return RequestPolicy(policy=policy, ladder=Ladder(end_thinking_copies=end, stop_copies=stop), shadow=shadow)


def each(policy, **changes):
    """The policy with changes in every section that has a penalty."""
    configs = zip(SECTIONS, policy.configs, strict=True)
    return Policy(**{name: config and replace(config, **changes) for name, config in configs})


NONE, EVERYWHERE = Policy.everywhere(None), Policy.everywhere(GUARDED)
OFF = {"lz_penalty": 0, "lz_end_thinking_copies": "none", "lz_stop_copies": "none", "lz_shadow": False}


@pytest.mark.parametrize(
    ("request_fields", "default", "want"),
    [
        ({"lz_stop_copies": 20}, None, asked(NONE, stop=20.0)),
        ({"lz_stop_copies": 20}, GUARDED, asked(EVERYWHERE, stop=20.0)),
        ({"lz_preset": "guarded", "lz_end_thinking_copies": 7.5}, None, asked(EVERYWHERE, end=7.5)),
        ({"lz_penalty": 0, "lz_stop_copies": 20}, GUARDED, asked(NONE, stop=20.0)),
        ({"lz_policy": "default", "lz_shadow": True}, None, asked(Policy(), shadow=True)),
        ({"lz_shadow": 1}, None, asked(NONE, shadow=True)),
        ({"lz_preset": "guarded", "lz_shadow": 0}, None, GUARDED),
        # a default with a policy, a ladder and shadow mode
        ({}, asked(Policy(), 10, 20), asked(Policy(), 10, 20)),
        ({"lz_preset": "guarded"}, asked(Policy(), 10, 20), asked(EVERYWHERE, 10, 20)),
        ({"lz_penalty": 0}, asked(Policy(), 10, 20), asked(NONE, 10, 20)),
        (OFF, asked(Policy(), 10, 20, shadow=True), None),
        (OFF | {"lz_shadow": 0}, asked(EVERYWHERE, 10, 20, shadow=True), None),
        (OFF, None, None),
        ({"lz_stop_copies": 30}, asked(Policy(), 10, 20), asked(Policy(), 10, 30.0)),
        ({"lz_stop_copies": "none"}, asked(Policy(), 10, 20), asked(Policy(), 10)),
        ({"lz_stop_copies": "none"}, asked(EVERYWHERE, stop=20), GUARDED),
        ({"lz_stop_copies": "none"}, asked(NONE, stop=20), None),
        ({"lz_shadow": False}, asked(Policy(), shadow=True), asked(Policy())),
        ({"lz_code": "failsafe"}, asked(Policy()), asked(replace(Policy(), code=FAILSAFE_OUTPUT))),
        (
            {"lz_loop_window": 99},
            asked(Policy(), stop=20),
            asked(each(Policy(), loop_window=99), stop=20),
        ),
        # the strength changes only what has a penalty
        ({"lz_penalty": 0.3}, asked(Policy(), 10, 20, shadow=True), asked(each(Policy(), strength=0.3), 10, 20, True)),
        ({"lz_penalty": 0.3}, asked(EVERYWHERE, stop=20), asked(each(EVERYWHERE, strength=0.3), stop=20)),
        (
            {"lz_penalty": 0.3, "lz_stop_copies": "none", "lz_shadow": 0},
            asked(EVERYWHERE, stop=20, shadow=True),
            replace(GUARDED, strength=0.3),
        ),
        (
            {"lz_penalty": 0.3, "lz_escalation": 2, "lz_include_prompt": 1},
            asked(Policy(), 10),
            asked(each(Policy(), strength=0.3, escalation=2, include_prompt=True), 10),
        ),
        # no section has a penalty
        ({"lz_penalty": 0.3}, asked(NONE, 10, 20, shadow=True), asked(Policy.everywhere(STRONG), 10, 20, True)),
        (
            {"lz_penalty": 0.3, "lz_escalation": 1},
            asked(NONE, stop=20),
            asked(Policy.everywhere(replace(STRONG, escalation=1)), stop=20),
        ),
        (
            {"lz_penalty": 0.3, "lz_code": "none"},
            asked(NONE, stop=20),
            asked(replace(Policy.everywhere(STRONG), code=None), stop=20),
        ),
        # with sections
        (
            {"lz_penalty": 0.3, "lz_code": "none"},
            GUARDED,
            asked(replace(each(EVERYWHERE, strength=0.3), code=None)),
        ),
        (
            {"lz_penalty": 0.3, "lz_code": "failsafe"},
            asked(Policy(), 10),
            asked(each(replace(Policy(), code=FAILSAFE_OUTPUT), strength=0.3), 10),
        ),
        (
            {"lz_penalty": 0.3, "lz_escalation": 2, "lz_code": "guarded"},
            asked(Policy()),
            asked(replace(each(Policy(), strength=0.3, escalation=2), code=replace(GUARDED, strength=0.3))),
        ),
        ({"lz_penalty": 0, "lz_code": "guarded"}, asked(Policy(), 10), asked(NONE, 10)),
        ({"lz_policy": "default", "lz_penalty": 0.3}, PAPER, asked(each(Policy(), strength=0.3))),
    ],
)
def test_ladder_and_shadow_mode(request_fields, default, want):
    assert settings_from_request(request_fields, default) == want


def test_a_field_that_one_section_cannot_take_is_refused():
    """A section with `failsafe` has no codelengths, so it cannot have a gate, with or without another strength."""
    for strength in ({}, {"lz_penalty": 0.3}):
        with pytest.raises(LZPenaltyError, match="a gate needs codelengths"):
            settings_from_request({"lz_gate_low": 0.2, "lz_gate_high": 0.4} | strength, asked(Policy()))


@pytest.mark.parametrize(
    ("request_fields", "message"),
    [
        ({"lz_policy": "defualt"}, "lz_policy = 'defualt': must be one of 'default'"),
        ({"lz_policy": None}, "lz_policy = None: must be one of 'default'"),
        ({"lz_policy": ["default"]}, "must be one of 'default'"),
        (
            {"lz_code": "off"},
            "lz_code = 'off': must be one of 'paper', 'sglang', 'guarded', 'failsafe', 'none'",
        ),
        ({"lz_table": 0}, "lz_table = 0: must be one of"),
        ({"lz_thinkng": "guarded"}, "lz_thinkng = 'guarded': unknown field. Did you mean lz_thinking?"),
        (
            {"lz_policy": "default", "lz_preset": "paper"},
            "lz_preset = 'paper': cannot be given together with lz_policy",
        ),
        ({"lz_policy": "default", "lz_escalation": 2}, "Set sections instead, for example lz_answer = 'guarded'"),
        ({"lz_policy": "default", "lz_penalty": 101}, "lz_penalty = 101: must be a finite number from 0 to 100"),
        ({"lz_thinking": "guarded", "lz_buffer_size": 1}, "lz_min_match_length = 4: must be at most lz_buffer_size"),
        ({"lz_thinking": "guarded", "lz_escalation": 1}, "there is no server default to refine"),
        ({"lz_policy": "default", "lz_gate_low": 0.5}, "lz_gate_low = 0.5: cannot be given together with lz_policy"),
        ({"lz_policy": "default", "lz_gate_window": 3}, "lz_gate_window = 3: must be an integer from 4 to 4096"),
        ({"lz_policy": "default", "lz_exempt_token_ids": list(range(1025))}, "more than 1024"),
        ({"lz_stop_copies": 2}, "lz_stop_copies = 2: must be a finite number from 3 to 100"),
        ({"lz_stop_copies": 1e9}, "lz_stop_copies = 1000000000.0: must be a finite number from 3 to 100"),
        ({"lz_stop_copies": True}, "lz_stop_copies = True: must be"),
        ({"lz_end_thinking_copies": "no"}, "lz_end_thinking_copies = 'no': must be"),
        (
            {"lz_end_thinking_copies": 20, "lz_stop_copies": 20},
            "lz_stop_copies = 20.0: must be more than lz_end_thinking_copies = 20",
        ),
        ({"lz_shadow": "yes"}, "lz_shadow = 'yes': must be true or false"),
        ({"lz_shadow": None}, "lz_shadow = None: must be true or false"),
    ],
)
def test_bad_requests(request_fields, message):
    with pytest.raises(LZPenaltyError, match=message):
        settings_from_request(request_fields)


def test_malformed_requests_never_raise_anything_else():
    refused = 0
    for fields in malformed(500):
        for ours in ({"lz_policy": "default"}, {"lz_thinking": "guarded", "lz_code": "none"}):
            try:
                settings_from_request(fields | ours)
            except LZPenaltyError:
                refused += 1
    assert refused > 700  # some are refused for a server's caps alone


def test_bad_policies():
    with pytest.raises(LZPenaltyError, match="ladder = 20: must be a Ladder"):
        RequestPolicy(policy=Policy(), ladder=20)
    with pytest.raises(LZPenaltyError, match="stop_copies = 101: must be"):
        Ladder(stop_copies=101)
    with pytest.raises(LZPenaltyError, match="code = 'failsafe': must be an LZPenaltyConfig"):
        Policy(code="failsafe")


def test_a_default_of_all_sections_is_refined_once(monkeypatch):
    """Checking a request's exempt ids takes time for each section whose settings are its own, and no more."""
    checked = []
    checks = config_module._REQUEST_CHECKS
    token_ids = checks["exempt_token_ids"]
    monkeypatch.setitem(checks, "exempt_token_ids", lambda name, value: checked.append(name) or token_ids(name, value))
    fields = {"lz_exempt_token_ids": [5, 6]}
    found = settings_from_request(fields, LZPenaltyConfig.guarded())
    assert found == LZPenaltyConfig.guarded(exempt_token_ids=(5, 6))
    assert checked.count("lz_exempt_token_ids") == 1
