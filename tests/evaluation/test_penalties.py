"""Penalties by name, and the request that asks vLLM for each."""

import pytest
import torch

from lz_penalty import LZPenaltyConfig, LZPenaltyError
from lz_penalty.evaluation.baselines import BASELINES, DRYLogitsProcessor, usual_breakers
from lz_penalty.evaluation.penalties import is_lz, penalty
from lz_penalty.evaluation.vllm_baselines import MAX_BREAKERS, asked


def test_the_fields_of_dry_arrive(tokenizer):
    (dry,) = penalty("dry:0.9,allowed_length=4,base=2,breakers=usual,last_n=1024").make(tokenizer, 7)
    assert (dry.multiplier, dry.base, dry.allowed_length, dry.last_n) == (0.9, 2.0, 4, 1024)
    assert dry.breakers == tuple((token,) for token in usual_breakers(tokenizer))
    assert dry.pad_token_id == tokenizer.pad_token_id
    (plain,) = penalty("dry,breakers=none").make(tokenizer, 7)
    assert (plain.multiplier, plain.breakers) == (BASELINES["dry"], ())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dry:0.8,allowed=4", "allowed = '4': unknown field. Did you mean allowed_length"),
        ("dry:0.8,base=0.5", r"base = 0\.5: must be a finite number from 1 to 100"),
        ("dry:0.8,base=x", "'x' must be a number"),
        ("dry:0.8,last_n=1.5", r"last_n = 1\.5: must be an integer"),
        ("dry:0.8,breakers=all", "breakers = 'all': must be 'usual' or 'none'"),
        ("dry:0.8,breakers", "'breakers' must be FIELD=VALUE, such as base=1.75"),
        ("dry:101", "dry = 101"),
        ("no-repeat-ngram:4,base=2", "no-repeat-ngram takes a value alone"),
        ("no-repeat-ngram:0", "no-repeat-ngram = 0"),
        (
            "guarded,window=5",
            r"^window = 5: unknown field\. Did you mean window_size\? Known: penalty, preset, window_size",
        ),
        ("", "^penalty '': unknown. Known: none, paper"),
        ("Guarded", "Did you mean guarded"),
        ("guarded,=5", "^ = 5: unknown field"),
        ("guarded,foo=lz_x", "^foo = 'lz_x': unknown field"),
        ("guarded,escalation=true", "^escalation = True: must be"),
        ("guarded,gate_low=0.9", r"^gate_low = 0\.9: must be below gate_high"),
        ("policy,code=off", "^code = 'off': must be one of"),
        ("policy,min_match_length=3", "^min_match_length = 3: cannot be given together with policy"),
        ("policy,stop_copies=20", "a ladder and shadow mode are not penalties"),
        ("policy,code", "'code' must be FIELD=VALUE, such as code=failsafe"),
    ],
)
def test_bad_names_are_refused(name, message):
    with pytest.raises(LZPenaltyError, match=message):
        penalty(name)


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("guarded,lz_window_size=64", "guarded,window_size=64"),
        (" guarded : 0.3 , window_size = 64 ", "guarded:0.3,window_size=64"),
        (
            "guarded,include_prompt=True,gate_low=none,gate_high=none",
            "guarded,include_prompt=1,gate_low=none,gate_high=none",
        ),
        ("paper,include_prompt=false", "paper,include_prompt=0"),
        ("policy,lz_code=failsafe", "policy,code=failsafe"),
    ],
)
def test_names_as_people_write_them(name, same):
    assert penalty(name).config == penalty(same).config
    assert penalty(name).lz_fields == penalty(same).lz_fields


# ---------------------------------------------------------------- requests


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("none", {}),
        ("guarded:0", {}),
        ("repetition:1.3", {"repetition_penalty": 1.3}),
        ("frequency", {"frequency_penalty": 0.3}),
        ("presence:0.7", {"presence_penalty": 0.7}),
        ("no-repeat-ngram:4", {"extra_args": {"no_repeat_ngram_size": 4}}),
        (
            "dry:0.8,last_n=64",
            {
                "extra_args": {
                    "dry_multiplier": 0.8,
                    "dry_base": 1.75,
                    "dry_allowed_length": 2,
                    "dry_last_n": 64,
                    "dry_breakers": [],
                }
            },
        ),
    ],
)
def test_requests(tokenizer, name, expected):
    assert penalty(name).request(tokenizer) == expected


def test_an_lz_request_asks_for_the_same_config(tokenizer):
    found = penalty("guarded:0.3,min_match_length=2").request(tokenizer)
    assert LZPenaltyConfig.from_request(found["extra_args"]) == penalty("guarded:0.3,min_match_length=2").config


def test_a_policy_asks_for_its_sections(tokenizer):
    made = penalty("policy:0.3,code=failsafe,window_size=256")
    fields = {"lz_policy": "default", "lz_penalty": 0.3, "lz_code": "failsafe", "lz_window_size": 256}
    assert made.request(tokenizer) == {"extra_args": fields}
    (processor,) = made.make(tokenizer, 7)
    assert processor.prompt_length == 7
    answer, code = processor.policy.answer, processor.policy.code
    assert (answer.strength, answer.window_size, answer.gate_low) == (0.3, 256, 0.4)
    assert (code.strength, code.min_match_length, code.escalation) == (0.3, None, 1.0)
    assert processor.policy.tool_call is None
    assert (made.config, is_lz(made.name), is_lz("dry:0.8")) == (None, True, False)


def test_a_policy_without_strength_changes_nothing(tokenizer):
    (processor,) = penalty("policy:0").make(tokenizer, 0)
    assert set(processor.policy.configs) == {None}


def test_what_is_requested_is_what_the_plug_in_reads(tokenizer):
    found = asked(penalty("dry:0.9,allowed_length=4,base=2,breakers=usual").request(tokenizer)["extra_args"])
    assert found.breakers == usual_breakers(tokenizer)
    assert found.dry[:3] == (0.9, 2.0, 4)
    assert asked(penalty("no-repeat-ngram:4").request(tokenizer)["extra_args"]) == (None, (), 4)
    for nothing in (None, {}, {"lz_preset": "guarded"}, {"dry_multiplier": 0}, {"no_repeat_ngram_size": 0}):
        assert asked(nothing) is None


def test_breakers_of_several_tokens_cannot_be_requested():
    with pytest.raises(LZPenaltyError, match="single tokens for vLLM"):
        DRYLogitsProcessor(breakers=[3, [4, 5]]).request()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dry_multiplier": "0.8"}, "dry_multiplier = '0.8': must be a finite number from 0 to 100"),
        ({"dry_multiplier": True}, "dry_multiplier = True"),
        ({"dry_multiplier": 1, "dry_base": float("nan")}, "dry_base = nan"),
        ({"dry_multiplier": 1, "dry_allowed_length": 70_000}, "dry_allowed_length = 70000"),
        ({"dry_multiplier": 1, "dry_last_n": -2}, "dry_last_n = -2"),
        ({"dry_multiplier": 1, "dry_breakers": "\n"}, "dry_breakers = "),
        ({"dry_multiplier": 1, "dry_breakers": [-1]}, "dry_breakers = -1"),
        ({"dry_multiplier": 1, "dry_breakers": range(MAX_BREAKERS + 1)}, "more than 65536 ids"),
        ({"dry_base": 2.0}, "dry_multiplier = None: must be given with dry_base"),
        ({"dry_multiply": 1}, "dry_multiply = 1: unknown field. Did you mean dry_multiplier"),
        ({"no_repeat_ngram_size": 2.5}, "no_repeat_ngram_size = 2.5: must be an integer from 0 to 65536"),
        ({"no_repeat_ngram": 3}, "no_repeat_ngram = 3: unknown field. Did you mean no_repeat_ngram_size"),
    ],
)
def test_bad_fields_are_refused(fields, message):
    with pytest.raises(LZPenaltyError, match=message):
        asked(fields)


def test_every_baseline_has_a_request_and_takes_prefixes(tokenizer):
    for name in BASELINES:
        made = penalty(name)
        assert made.request(tokenizer)
        (processor,) = made.make(tokenizer, 0)
        scores, tokens = torch.full((6, 8), -1.0), torch.tensor([[1, 2, 1, 2, 1, 2]])
        rows = torch.zeros(6, dtype=torch.long)
        found = scores.clone()
        processor.penalise_(found, tokens, torch.arange(1, 7), rows)
        for end in range(1, 7):
            assert torch.equal(found[end - 1], processor(tokens[:, :end], scores[:1])[0]), name
