"""Policies, and the request fields that ask for them."""

from dataclasses import replace

import pytest
from malformed import malformed

from lz_penalty import LZPenaltyConfig, LZPenaltyError
from lz_penalty.policy import SECTIONS, Policy, settings_from_request

PAPER, GUARDED, FAILSAFE = LZPenaltyConfig.paper(), LZPenaltyConfig.guarded(), LZPenaltyConfig.failsafe()


def test_the_default_policy():
    assert Policy() == Policy(thinking=GUARDED, answer=PAPER, code=None, tool_call=None, table=FAILSAFE)
    assert settings_from_request({"lz_policy": "default"}) == Policy()


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
            replace(Policy.everywhere(replace(PAPER, strength=0.3)), thinking=replace(GUARDED, strength=0.3)),
        ),
        ({"lz_policy": "default", "lz_answer": "guarded"}, PAPER, replace(Policy(), answer=GUARDED)),
        ({"lz_policy": "default", "lz_code": "failsafe"}, None, replace(Policy(), code=FAILSAFE)),
        (
            {"lz_policy": "default", "lz_window_size": 64, "lz_include_prompt": 0, "lz_exempt_token_ids": [5]},
            None,
            Policy(
                **{
                    name: config and replace(config, window_size=64, include_prompt=False, exempt_token_ids=(5,))
                    for name, config in zip(SECTIONS, Policy().configs, strict=True)
                }
            ),
        ),
        (
            {"lz_thinking": "guarded", "lz_window_size": 64},
            None,
            Policy(**dict.fromkeys(SECTIONS) | {"thinking": replace(GUARDED, window_size=64)}),
        ),
        ({"lz_policy": "default", "lz_penalty": 0}, PAPER, None),
        ({"lz_thinking": "guarded", "lz_penalty": 0}, None, None),
        ({"lz_thinking": "none"}, None, None),
        (dict.fromkeys(["lz_" + name for name in SECTIONS], "none"), PAPER, None),
    ],
)
def test_requests(request_fields, default, want):
    assert settings_from_request(request_fields, default) == want


@pytest.mark.parametrize(
    ("request_fields", "message"),
    [
        ({"lz_policy": "defualt"}, "lz_policy = 'defualt': must be one of 'default'"),
        ({"lz_policy": None}, "lz_policy = None: must be one of 'default'"),
        ({"lz_policy": ["default"]}, "must be one of 'default'"),
        ({"lz_code": "off"}, "lz_code = 'off': must be one of 'paper', 'sglang', 'guarded', 'failsafe', 'none'"),
        ({"lz_table": 0}, "lz_table = 0: must be one of"),
        ({"lz_thinkng": "guarded"}, "lz_thinkng = 'guarded': unknown field. Did you mean lz_thinking?"),
        (
            {"lz_policy": "default", "lz_preset": "paper"},
            "lz_preset = 'paper': cannot be given together with lz_policy",
        ),
        ({"lz_policy": "default", "lz_escalation": 2}, "Name sections instead, for example lz_answer = 'guarded'"),
        ({"lz_policy": "default", "lz_penalty": 101}, "lz_penalty = 101: must be a finite number from 0 to 100"),
        ({"lz_thinking": "guarded", "lz_buffer_size": 1}, "min_match_length = 3: must be at most buffer_size"),
        ({"lz_thinking": "guarded", "lz_escalation": 1}, "there is no server default to refine"),
        ({"lz_policy": "default", "lz_exempt_token_ids": list(range(1025))}, "more than 1024"),
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
    with pytest.raises(LZPenaltyError, match="code = 'failsafe': must be an LZPenaltyConfig"):
        Policy(code="failsafe")
