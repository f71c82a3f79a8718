"""The settings of a whole server."""

import json

import pytest

from lz_penalty import LZPenaltyConfig, LZPenaltyError
from lz_penalty.engines.server import VARIABLE, ServerSettings, server_settings


def test_nothing_is_set_by_default():
    assert ServerSettings.from_json("{}") == ServerSettings()
    assert ServerSettings().config_of(None) is None
    assert ServerSettings().config_of({"other": 1}) is None
    assert ServerSettings().config_of({"lz_preset": "guarded"}) == LZPenaltyConfig.guarded()


def test_a_default_can_be_refined_replaced_and_switched_off():
    server = ServerSettings.from_json('{"default": {"lz_preset": "guarded", "lz_penalty": 0.4}}')
    assert server.config_of({}) == LZPenaltyConfig.guarded(strength=0.4)
    assert server.config_of({"lz_window_size": 9}) == LZPenaltyConfig.guarded(strength=0.4, window_size=9)
    assert server.config_of({"lz_penalty": 0.2}) == LZPenaltyConfig.guarded(strength=0.2)
    assert server.config_of({"lz_preset": "paper"}) == LZPenaltyConfig.paper()
    assert server.config_of({"lz_penalty": 0}) is None


def test_caps_hold_for_what_is_asked_for_or_matters():
    server = ServerSettings(max_window_size=100, max_loop_window=200)
    assert server.config_of({"lz_penalty": 1, "lz_window_size": 100}).window_size == 100
    assert server.config_of({"lz_preset": "failsafe", "lz_loop_window": 200}).window_size == 512  # has no effect
    for fields in (
        {"lz_penalty": 1},  # the usual 512
        {"lz_penalty": 1, "lz_window_size": 101},
        {"lz_preset": "failsafe", "lz_loop_window": 200, "lz_window_size": 101},
    ):
        with pytest.raises(LZPenaltyError, match=r"lz_window_size = .* at most 100, the cap of this server"):
            server.config_of(fields)
    for fields in ({"lz_preset": "failsafe"}, {"lz_penalty": 1, "lz_window_size": 9, "lz_loop_window": 201}):
        with pytest.raises(LZPenaltyError, match=r"lz_loop_window = .* at most 200"):
            server.config_of(fields)


def test_the_cap_on_the_gate_window():
    server = ServerSettings(max_window_size=600, max_loop_window=5, max_gate_window=50)
    gate = {"lz_penalty": 1, "lz_gate_low": 0.5, "lz_gate_high": 0.7}
    assert server.config_of(gate | {"lz_gate_window": 50}).gate_window == 50
    assert server.config_of({"lz_penalty": 1}).gate_window == 96  # has no effect
    for fields in (gate, gate | {"lz_gate_window": 51}, {"lz_penalty": 1, "lz_gate_window": 51}):
        with pytest.raises(LZPenaltyError, match=r"lz_gate_window = .* at most 50, the cap of this server"):
            server.config_of(fields)


def test_caps_on_the_buffer_and_on_exempt_ids():
    """Each size beyond the usual ones can have kernels compiled on a GPU, while every request waits."""
    server = ServerSettings(max_buffer_size=64, max_exempt_token_ids=3)
    fields = {"lz_penalty": 1, "lz_buffer_size": 64, "lz_exempt_token_ids": [1, 2, 3]}
    assert server.config_of(fields).exempt_token_ids == (1, 2, 3)
    with pytest.raises(LZPenaltyError, match="lz_buffer_size = 65: must be at most 64, the cap of this server"):
        server.config_of(fields | {"lz_buffer_size": 65})
    with pytest.raises(
        LZPenaltyError, match="lz_exempt_token_ids: 4 ids given; must be at most 3, the cap of this server"
    ):
        server.settings_of(fields | {"lz_policy": "default", "lz_exempt_token_ids": [1, 2, 3, 4]})
    with pytest.raises(LZPenaltyError, match="at most 512, the cap of this server"):
        ServerSettings().config_of({"lz_penalty": 1, "lz_buffer_size": 513})


@pytest.mark.parametrize(
    "given",
    [
        [],
        {"default": "guarded"},
        {"default": {"preset": "guarded"}},
        {"default": {"lz_window_size": 5}},
        {"default": {"lz_preset": "guarded"}, "max_loop_window": 4095},
        {"max_window_size": 0},
        {"max_window_size": True},
        {"max_loop_window": 65537},
        {"max_buffer_size": 0},
        {"max_buffer_size": 4097},
        {"max_gate_window": 3},
        {"max_gate_window": 4097},
        {"default": {"lz_preset": "guarded"}, "max_gate_window": 95},
        {"max_exempt_token_ids": -1},
        {"max_exempt_token_ids": 1025},
        {"default": {"lz_preset": "guarded", "lz_buffer_size": 600}},
        {"penalise_special_tokens": 1},
        {"count_loops": "yes"},
        {"wait_for_tokens": "auto"},
        {"cap": 3},
        {"x" * 100_000: 3},
        {"default": {"x" * 100_000: 3}},
        {"default": {"lz_" + "x" * 100_000: 3}},
    ],
)
def test_mistakes(given):
    with pytest.raises(LZPenaltyError, match=VARIABLE):
        ServerSettings.from_json(json.dumps(given))


def test_mistakes_are_told_in_a_few_words():
    for text in (
        '{"a": ' * 100_000,
        "[" * 100_000,
        json.dumps({"x" * 100_000: 3}),
        '{"default": {"%s": 1}}' % ("x" * 10**5),
    ):
        with pytest.raises(LZPenaltyError, match=VARIABLE) as error:
            ServerSettings.from_json(text)
        assert len(str(error.value)) < 700


EXAMPLE = 'must be a JSON object, such as {"default": {"lz_preset": "guarded"}}.'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("guarded", f"the value = 'guarded': {EXAMPLE} It is not JSON: Expecting value"),
        ('{"default": }', f"the value = '{{\"default\": }}': {EXAMPLE} It is not JSON: Expecting value"),
        ("null", f"the value = 'null': {EXAMPLE}"),
        ("[" + "1" * 5000 + "]", EXAMPLE),
        ('{"default": {}, "default": {"lz_preset": "guarded"}}', "default: occurs twice in one object. Write it once."),
        ('{"default": {"lz_penalty": 1, "lz_penalty": 2}}', "lz_penalty: occurs twice in one object. Write it once."),
    ],
    ids=range(6),
)
def test_what_is_no_json_object(text, message):
    with pytest.raises(LZPenaltyError) as error:
        ServerSettings.from_json(text)
    assert str(error.value).startswith("LZ_PENALTY_SERVER: ")
    assert message in str(error.value)


def test_the_environment_is_read_once(monkeypatch):
    monkeypatch.setenv(VARIABLE, '{"max_window_size": 77}')
    server_settings.cache_clear()
    assert server_settings().max_window_size == 77
    monkeypatch.setenv(VARIABLE, "{")
    assert server_settings().max_window_size == 77
    server_settings.cache_clear()
    with pytest.raises(LZPenaltyError, match=r"LZ_PENALTY_SERVER: .*JSON"):
        server_settings()
    monkeypatch.delenv(VARIABLE)
    assert server_settings() == ServerSettings()
    server_settings.cache_clear()


def test_policies():
    server = ServerSettings.from_json('{"default": {"lz_policy": "default", "lz_stop_copies": 20}}')
    assert server.settings_of(None) is server.default
    weaker = server.settings_of({"lz_penalty": 0.3})
    assert (weaker.ladder.stop_copies, weaker.policy.code) == (20, None)
    assert weaker.policy.answer == LZPenaltyConfig.guarded(strength=0.3)
    assert server.settings_of({"lz_code": "paper"}).policy.code == LZPenaltyConfig.paper(include_prompt=False)
    assert ServerSettings().settings_of({"lz_penalty": 0.3}) == LZPenaltyConfig(strength=0.3)
    with pytest.raises(LZPenaltyError, match="the default has fields of a policy"):
        server.without_policies()
    with pytest.raises(LZPenaltyError, match="the default has fields of a policy"):
        server.config_of({"lz_penalty": 0.3})
    with pytest.raises(LZPenaltyError, match="lz_policy = 'default': unknown field"):
        ServerSettings().without_policies().config_of({"lz_policy": "default"})


def test_caps_hold_in_every_section():
    server = ServerSettings(max_window_size=600, max_loop_window=3000)
    with pytest.raises(LZPenaltyError, match="lz_loop_window = 4096: must be at most 3000"):
        server.settings_of({"lz_preset": "paper", "lz_table": "failsafe"})
    assert server.settings_of({"lz_preset": "paper", "lz_table": "failsafe", "lz_loop_window": 9})
    with pytest.raises(LZPenaltyError, match="LZ_PENALTY_SERVER: lz_loop_window = 4096"):
        ServerSettings.from_json('{"default": {"lz_policy": "default"}, "max_loop_window": 4095}')


def test_the_prompt_counts_in_all_sections_or_in_none():
    """A server stores one history per request."""

    def counts(**fields):
        return {config.include_prompt for config in ServerSettings().settings_of(fields).policy.configs if config}

    assert counts(lz_preset="paper", lz_code="sglang") == counts(lz_preset="guarded", lz_code="paper") == {False}
    assert counts(lz_preset="paper", lz_code="failsafe") == {True}
    assert counts(lz_preset="paper", lz_code="sglang", lz_include_prompt=1) == {True}
    assert counts(lz_preset="paper", lz_code="failsafe", lz_include_prompt=0) == {False}


def test_what_only_vllm_knows_is_refused_elsewhere():
    assert ServerSettings().without_vllm_settings() == ServerSettings()
    with pytest.raises(LZPenaltyError, match="stop_token_id = 7: only vLLM supports it"):
        ServerSettings(stop_token_id=7).without_vllm_settings()
    with pytest.raises(LZPenaltyError, match="wait_for_tokens = False: only vLLM supports it"):
        ServerSettings(wait_for_tokens=False).without_vllm_settings()
