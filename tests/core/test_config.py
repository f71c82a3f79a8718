"""Settings: bounds on both sides of every field, presets, and flat request fields that survive JSON."""

import json
import math
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lz_penalty import LZPenaltyConfig, LZPenaltyError, errors
from lz_penalty.config import MAX_FIELDS, PRESETS
from lz_penalty.engines.server import ServerSettings
from lz_penalty.policy import settings_from_request
from lz_penalty.reference import copy_share
from tests.support.malformed import hostile, nested

BAD = [
    ("strength", -0.1, "0 to 100"),
    ("strength", 100.001, "0 to 100"),
    ("strength", math.nan, "0 to 100"),
    ("strength", math.inf, "0 to 100"),
    ("strength", True, "0 to 100"),
    ("strength", "0.15", "0 to 100"),
    ("strength", None, "0 to 100"),
    ("strength", 10**5000, "0 to 100"),
    ("escalation", -1, "0 to 100"),
    ("escalation", 101, "0 to 100"),
    ("escalation", -math.inf, "0 to 100"),
    ("window_size", 0, "1 to 65536"),
    ("window_size", 65537, "1 to 65536"),
    ("window_size", 10**9, "1 to 65536"),
    ("window_size", True, "1 to 65536"),
    ("window_size", 512.0, "1 to 65536"),
    ("loop_window", 0, "1 to 65536"),
    ("loop_window", 65537, "1 to 65536"),
    ("gate_low", -0.01, "0 to 1 or None"),
    ("gate_low", math.nan, "0 to 1 or None"),
    ("gate_low", "0.5", "0 to 1 or None"),
    ("gate_high", 1.01, "0 to 1 or None"),
    ("gate_high", math.nan, "0 to 1 or None"),
    ("gate_high", math.inf, "0 to 1 or None"),
    ("gate_high", True, "0 to 1 or None"),
    ("gate_window", 3, "4 to 4096"),
    ("gate_window", 4097, "4 to 4096"),
    ("gate_window", 96.0, "4 to 4096"),
    ("gate_window", None, "4 to 4096"),
    ("gate_from", 0, "1 to 4096 or None"),
    ("gate_from", 4097, "1 to 4096 or None"),
    ("gate_from", 48.0, "1 to 4096 or None"),
    ("buffer_size", 0, "1 to 4096"),
    ("buffer_size", 4097, "1 to 4096"),
    ("min_match_length", 0, "1 to 4097"),
    ("min_match_length", 34, "buffer_size + 1 = 33"),
    ("min_match_length", True, "1 to 4097"),
    ("formula", "lz78", "'paper', 'sglang'"),
    ("formula", None, "'paper', 'sglang'"),
    ("lookback", "ahead", "'before_buffer', 'adjacent', None"),
    ("include_prompt", 1, "true or false"),
    ("include_prompt", None, "true or false"),
    ("exempt_token_ids", [-1], "at most 2047 integers from 0"),
    ("exempt_token_ids", [True], "at most 2047 integers from 0"),
    ("exempt_token_ids", [1.0], "at most 2047 integers from 0"),
    ("exempt_token_ids", [2**31], "at most 2047 integers from 0"),
    ("exempt_token_ids", range(2048), "at most 2047 integers from 0"),
    ("exempt_token_ids", "12", "at most 2047 integers from 0"),
    ("exempt_token_ids", 12, "at most 2047 integers from 0"),
]


@pytest.mark.parametrize(
    ("field", "value", "allowed"), BAD, ids=[f"{field}-{i}" for i, (field, _, _) in enumerate(BAD)]
)
def test_bad_values_name_field_value_and_range(field, value, allowed):
    with pytest.raises(LZPenaltyError) as error:
        LZPenaltyConfig(**{field: value})
    assert str(error.value).startswith(field)
    assert allowed in str(error.value)
    assert len(str(error.value)) < 250


@pytest.mark.parametrize(
    ("field", "low", "high"),
    [
        ("strength", 0, 100),
        ("escalation", 0, 100),
        ("window_size", 1, 65_536),
        ("loop_window", 1, 65_536),
        ("gate_window", 4, 4_096),
        ("gate_from", 1, 4_096),
        ("buffer_size", 1, 4_096),
        ("min_match_length", 1, 33),
    ],
)
def test_both_bounds_belong_to_the_range(field, low, high):
    for value in (low, high):
        assert getattr(LZPenaltyConfig(**{field: value}), field) == value


def test_numpy_numbers_are_numbers_and_become_plain():
    config = LZPenaltyConfig(strength=np.float32(0.5), window_size=np.int64(64), exempt_token_ids=np.array([3, 1, 3]))
    assert config == LZPenaltyConfig(strength=0.5, window_size=64, exempt_token_ids=(1, 3))
    assert type(config.window_size) is int
    assert json.dumps(config.to_request())


def test_frozen_and_hashable():
    config = LZPenaltyConfig()
    with pytest.raises(FrozenInstanceError):
        config.strength = 1.0
    assert len({config, LZPenaltyConfig.paper(), LZPenaltyConfig.guarded()}) == 2


def test_presets_are_the_specifications():
    assert LZPenaltyConfig.paper() == LZPenaltyConfig(strength=0.15, window_size=512, buffer_size=32)
    sglang = LZPenaltyConfig.sglang()
    assert (sglang.formula, sglang.include_prompt, sglang.effective_lookback) == ("sglang", False, "adjacent")
    guarded = LZPenaltyConfig.guarded()
    assert (guarded.strength, guarded.window_size, guarded.buffer_size, guarded.loop_window) == (0.4, 384, 32, 4096)
    assert (guarded.lookback, guarded.min_match_length, guarded.escalation) == ("adjacent", 4, 1.0)
    assert (guarded.gate_low, guarded.gate_high, guarded.gate_window, guarded.gate_from) == (0.4, 0.5, 384, 48)
    assert not guarded.include_prompt
    failsafe = LZPenaltyConfig.failsafe()
    assert (failsafe.min_match_length, failsafe.escalation, failsafe.strength) == (None, 1.0, 0.15)
    assert LZPenaltyConfig.guarded(escalation=2.0).escalation == 2.0
    assert list(PRESETS) == ["paper", "sglang", "guarded", "failsafe"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gate_low": 0.5}, "gate_low = 0.5: must be given together with gate_high, or not at all"),
        ({"gate_high": 0.5}, "gate_high = 0.5: must be given together with gate_low, or not at all"),
        ({"gate_low": 0.7, "gate_high": 0.5}, "gate_low = 0.7: must be below gate_high = 0.5"),
        ({"gate_low": 0.5, "gate_high": 0.5}, "gate_low = 0.5: must be below gate_high = 0.5"),
        ({"gate_low": 0.5, "gate_high": 0.7, "min_match_length": None}, "min_match_length = None: must be an integer"),
    ],
)
def test_thresholds_that_are_no_gate_are_refused(given, message):
    with pytest.raises(LZPenaltyError) as error:
        LZPenaltyConfig(**given)
    assert str(error.value).startswith(message)
    request = {"lz_" + name: "none" if value is None else value for name, value in given.items()}
    for default in (None, LZPenaltyConfig.paper()):
        with pytest.raises(LZPenaltyError) as error:
            LZPenaltyConfig.from_request({"lz_penalty": 0.1} | request, default)
        in_request = message.replace("gate_", "lz_gate_").replace("min_match", "lz_min_match")
        assert str(error.value).startswith(in_request)


def test_the_widest_and_the_narrowest_gate():
    widest = LZPenaltyConfig(gate_low=0, gate_high=1)
    assert (widest.gate_low, widest.gate_high) == (0.0, 1.0)
    assert type(widest.gate_low) is float
    narrow = LZPenaltyConfig(gate_low=0.5, gate_high=math.nextafter(0.5, 1))
    request = json.loads(json.dumps(narrow.to_request()))
    assert LZPenaltyConfig.from_request(request) == narrow
    assert LZPenaltyConfig.sglang(gate_low=0.2, gate_high=0.4).gate_high == 0.4


@pytest.mark.parametrize(
    ("window", "given", "first"), [(7, None, 4), (8, None, 4), (8, 3, 3), (8, 5, 4), (384, 48, 48), (96, 48, 48)]
)
def test_the_gate_can_open_earlier_than_at_half_of_its_window_but_not_later(window, given, first):
    config = LZPenaltyConfig(gate_low=0, gate_high=0.1, gate_window=window, gate_from=given, min_match_length=1)
    assert config.effective_gate_from == first
    sizes = {"gate_window": window, "gate_from": given}
    assert [copy_share([5] * t, **sizes) > 0 for t in (first - 1, first)] == [False, True]


def test_sglang_refuses_what_it_implies_otherwise():
    with pytest.raises(LZPenaltyError, match="lookback"):
        LZPenaltyConfig.sglang(lookback="before_buffer")
    for length in (2, None):
        with pytest.raises(LZPenaltyError, match="min_match_length"):
            LZPenaltyConfig.sglang(min_match_length=length)
    assert LZPenaltyConfig.sglang(lookback="adjacent", escalation=1.0).escalation == 1.0


# ---------------------------------------------------------------- requests

configs = st.builds(
    lambda buffer_size, formula, lookback, length, gate, **rest: LZPenaltyConfig(
        buffer_size=buffer_size,
        formula=formula,
        lookback="adjacent" if formula == "sglang" and lookback else lookback,
        min_match_length=1 if formula == "sglang" else length and min(length, buffer_size + 1),
        **({} if formula == "paper" and length is None else gate),
        **rest,
    ),
    strength=st.floats(0.001, 100),
    window_size=st.integers(1, 65_536),
    buffer_size=st.integers(1, 4_096),
    formula=st.sampled_from(["paper", "sglang"]),
    lookback=st.sampled_from([None, "before_buffer", "adjacent"]),
    length=st.none() | st.integers(1, 4_097),
    escalation=st.floats(0, 100),
    loop_window=st.integers(1, 65_536),
    gate=st.just({})
    | st.tuples(st.floats(0, 0.5), st.floats(0.51, 1)).map(lambda pair: {"gate_low": pair[0], "gate_high": pair[1]}),
    gate_window=st.integers(4, 4_096),
    gate_from=st.none() | st.integers(1, 4_096),
    include_prompt=st.booleans(),
    exempt_token_ids=st.lists(st.integers(0, 200_000), max_size=20),
)


presets = st.builds(
    lambda name, changes: PRESETS[name](**changes),
    st.sampled_from(list(PRESETS)),
    st.fixed_dictionaries(
        {},
        optional={"strength": st.floats(0.001, 100), "window_size": st.integers(1, 65_536), "buffer_size": st.just(64)},
    ),
)


@given(configs | presets, st.none() | configs | presets)
def test_requests_survive_json_and_any_server_default(config, default):
    request = json.loads(json.dumps(config.to_request()))
    assert all(isinstance(value, (str, int, float, list)) for value in request.values())
    assert LZPenaltyConfig.from_request(request, default) == config
    assert settings_from_request(request, default) == config


@given(configs | presets)
def test_requests_name_the_closest_preset(config):
    request = config.to_request()
    differing = {
        name: sum(value != getattr(preset(), field) for field, value in vars(config).items())
        for name, preset in PRESETS.items()
    }
    assert request["lz_preset"] == min(differing, key=differing.get)  # the first of several
    assert len(request) - 1 == min(differing.values())


def test_requests_of_presets_are_short():
    for name, preset in PRESETS.items():
        assert preset().to_request() == {"lz_preset": name}
        assert preset(strength=0.3, escalation=2).to_request() == {
            "lz_preset": name,
            "lz_penalty": 0.3,
            "lz_escalation": 2.0,
        }
    assert LZPenaltyConfig().to_request() == {"lz_preset": "paper"}


def test_nothing_asked_means_the_servers_default():
    default = LZPenaltyConfig.guarded()
    assert LZPenaltyConfig.from_request({}) is None
    for request in (None, [1], "lz_preset"):
        with pytest.raises(LZPenaltyError, match=r"the request = .*: must be a dict of fields"):
            LZPenaltyConfig.from_request(request)
    assert LZPenaltyConfig.from_request({}, default) is default
    assert LZPenaltyConfig.from_request({"temperature": 0.0, 3: 4}, default) is default


def test_zero_is_off_but_still_checked():
    default = LZPenaltyConfig.guarded()
    assert LZPenaltyConfig.from_request({"lz_penalty": 0}, default) is None
    assert LZPenaltyConfig.from_request({"lz_preset": "guarded", "lz_penalty": 0.0}) is None
    assert LZPenaltyConfig.from_request({"lz_penalty": 0}) is None
    with pytest.raises(LZPenaltyError, match="lz_window_size = -5"):
        LZPenaltyConfig.from_request({"lz_penalty": 0, "lz_window_size": -5})


def test_preset_with_overrides():
    asked = {"lz_preset": "guarded", "lz_penalty": 0.3, "lz_exempt_token_ids": [5], "lz_include_prompt": 1}
    want = LZPenaltyConfig.guarded(strength=0.3, exempt_token_ids=[5], include_prompt=True)
    assert LZPenaltyConfig.from_request(asked, LZPenaltyConfig.sglang()) == want


def test_other_fields_refine_the_default():
    default = LZPenaltyConfig.guarded(window_size=100)
    refined = LZPenaltyConfig.from_request({"lz_escalation": 2}, default)
    assert refined == replace(default, escalation=2.0)
    with pytest.raises(LZPenaltyError, match=r"lz_escalation.*no server default.*lz_preset"):
        LZPenaltyConfig.from_request({"lz_escalation": 2})


@pytest.mark.parametrize("preset", PRESETS)
def test_the_strength_refines_the_default(preset):
    default = PRESETS[preset](window_size=100, exempt_token_ids=[5])
    assert LZPenaltyConfig.from_request({"lz_penalty": 0.3}, default) == replace(default, strength=0.3)
    both = {"lz_penalty": 0.3, "lz_window_size": 64}
    assert LZPenaltyConfig.from_request(both, default) == replace(default, strength=0.3, window_size=64)
    assert LZPenaltyConfig.from_request(both) == LZPenaltyConfig(strength=0.3, window_size=64)


def test_a_gate_is_refined_and_switched_off():
    default = LZPenaltyConfig.guarded()
    off = {"lz_gate_low": "none", "lz_gate_high": "none"}
    for request in (off, off | {"lz_preset": "guarded"}):
        assert LZPenaltyConfig.from_request(request, default) == replace(default, gate_low=None, gate_high=None)
    assert LZPenaltyConfig.from_request({"lz_gate_low": 0.4}, default) == replace(default, gate_low=0.4)
    on = {"lz_gate_low": 0.1, "lz_gate_high": 0.2}
    for other in (LZPenaltyConfig.paper(), default):
        assert LZPenaltyConfig.from_request(on, other) == replace(other, gate_low=0.1, gate_high=0.2)
    for half in ({"lz_gate_low": "none"}, {"lz_gate_high": "none"}, {"lz_min_match_length": "none"}):
        for strength in ({}, {"lz_penalty": 0.3}):
            with pytest.raises(LZPenaltyError, match=r"None: must be|must be given together"):
                LZPenaltyConfig.from_request(half | strength, default)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"lz_windowsize": 1}, "Did you mean lz_window_size"),
        ({"lz_strength": 1}, "unknown field"),
        ({"lz_presets": "paper"}, "Did you mean lz_preset"),
        ({"lz_preset": "gaurded"}, "'guarded'"),
        ({"lz_preset": None}, "'guarded'"),
        ({"lz_preset": ["paper"]}, "'guarded'"),
        ({"lz_penalty": True}, "lz_penalty = True"),
        ({"lz_penalty": "0.1"}, "lz_penalty = '0.1'"),
        ({"lz_penalty": None}, "lz_penalty = None"),
        ({"lz_penalty": 0.1, "lz_window_size": 10**9}, "1 to 65536"),
        ({"lz_penalty": 0.1, "lz_include_prompt": 2}, "lz_include_prompt = 2"),
        ({"lz_penalty": 0.1, "lz_min_match_length": 0}, "lz_min_match_length = 0"),
        ({"lz_penalty": 0.1, "lz_exempt_token_ids": [[1]]}, "lz_exempt_token_ids"),
        ({"lz_penalty": 0.1, "lz_exempt_token_ids": {"a": 1}}, "lz_exempt_token_ids"),
        ({"lz_" + "x" * 10_000: 1}, "unknown field"),
    ],
)
def test_bad_requests_are_refused_by_name(asked, message):
    with pytest.raises(LZPenaltyError) as error:
        LZPenaltyConfig.from_request(asked)
    assert message in str(error.value)
    assert len(str(error.value)) < 600


def test_booleans_travel_as_themselves_and_as_numbers():
    for value in (False, 0):
        asked = {"lz_penalty": 0.1, "lz_include_prompt": value}
        assert LZPenaltyConfig.from_request(asked).include_prompt is False


# ---------------------------------------------------------------- requests that are made to take long


@pytest.fixture
def compared(monkeypatch):
    """The lengths of the names that were compared with known ones."""
    lengths = []
    close = errors.difflib.get_close_matches

    def counting(word, *args, **kwargs):
        lengths.append(len(word))
        assert len(word) <= 64  # before the comparison, which would take seconds
        return close(word, *args, **kwargs)

    monkeypatch.setattr(errors.difflib, "get_close_matches", counting)
    return lengths


@pytest.mark.parametrize("read", [LZPenaltyConfig.from_request, settings_from_request, ServerSettings().settings_of])
def test_hostile_requests_are_refused_with_little_work(compared, read):
    for what, asked in hostile().items():
        with pytest.raises(LZPenaltyError) as error:
            read(asked)
        message = str(error.value)
        assert len(message) < 700, what
        message.encode()  # no lone surrogates
    assert 64 in compared


def test_the_number_of_fields_is_bounded():
    most = {f"other_{number}": 1 for number in range(MAX_FIELDS - 1)} | {"lz_penalty": 0.2}
    for read in (LZPenaltyConfig.from_request, settings_from_request):
        assert read(most).strength == 0.2
        with pytest.raises(LZPenaltyError, match="the request has 1025 fields: must be at most 1024"):
            read(most | {"one_more": 1})


class Counted(list):
    """A list that counts how many of its items are read."""

    asked = 0

    def __iter__(self):
        for item in super().__iter__():
            self.asked += 1
            yield item


def test_values_are_shown_in_part():
    many = Counted(range(100_000))
    assert errors.show(many).startswith("[0, 1, 2, 3,")
    assert many.asked < 100
    assert len(errors.show(many)) == 60
    for value in (0.5, "a", "it's", b"b", [1, "a"], (1,), (1, 2), {"a": [1]}, [], {}, (), None, True, {1}, "x\ud800"):
        assert errors.show(value) == repr(value)
    assert errors.show("x" * 100) == "'" + "x" * 56 + "..."
    assert errors.show(nested(4)) == "[[[[...]]]]"
    assert errors.show({1: nested(5, dict)}) == "{1: {'a': {'a': {...}}}}"
    assert errors.show(10**5000) == errors.show(-(10**5000)) == "a very large int"

    class Broken:
        def __repr__(self):
            raise KeyError("never made")

    assert errors.show([Broken()]) == "[a value of type Broken]"


@pytest.mark.parametrize("ids", [np.array(5), {}, {5: 1}, (one for one in ("a",))])
def test_ids_must_be_a_sequence_of_integers(ids):
    with pytest.raises(LZPenaltyError, match=r"exempt_token_ids = .*at most 2047 integers"):
        LZPenaltyConfig(exempt_token_ids=ids)


def test_no_more_ids_are_read_than_allowed():
    ids = iter(range(10**9))
    with pytest.raises(LZPenaltyError, match="more than 2047 ids"):
        LZPenaltyConfig(exempt_token_ids=ids)
    assert next(ids) == 2048
    with pytest.raises(LZPenaltyError, match="lz_stop_copies"):
        settings_from_request({"lz_stop_copies": np.array([20, 30])})
