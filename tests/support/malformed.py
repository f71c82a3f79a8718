"""Request fields that every server must refuse."""

import random

from lz_penalty.config import REQUEST_FIELDS


def malformed(count, rng=None):
    """Settings that must be refused: wrong types, out of range, unknown, above the cap, contradictory."""
    rng = rng or random.Random(0)
    wrong = {
        "lz_penalty": [-0.1, 101, 1e300, "0.15", "nan", [0.1], "inf", ""],
        "lz_preset": ["gaurded", "", 3, "GUARDED", ["guarded"]],
        "lz_window_size": [0, -5, 8193, 10**12, 0.5, "512", [512]],
        "lz_buffer_size": [0, -1, 4097, 2.5, "x"],
        "lz_formula": ["papers", 1, ""],
        "lz_lookback": ["adjacen", 0, []],
        "lz_min_match_length": [0, 34, -3, 1.5, "None"],
        "lz_escalation": [-1, 101, "1", [1]],
        "lz_loop_window": [0, 8193, 10**9, "4096"],
        "lz_gate_low": [-0.1, 1, 2, "0.5", "None", [0.5]],
        "lz_gate_high": [0, -1, 1.01, "1", [1]],
        "lz_gate_window": [3, 0, -96, 1025, 4097, 10**12, 96.5, "96"],
        "lz_gate_from": [0, -1, 4097, 48.5, "48", [48]],
        "lz_include_prompt": [2, "true", -1, "no", 0.5],
        "lz_exempt_token_ids": [[-1], [2**31], list(range(1025)), ["a"], "5", 5, [1.5]],
    }
    together = [
        {"lz_preset": "sglang", "lz_lookback": "before_buffer"},
        {"lz_preset": "sglang", "lz_min_match_length": 2},
        {"lz_penalty": 0.2, "lz_buffer_size": 3, "lz_min_match_length": 5},
        {"lz_preset": "guarded", "lz_loop_window": 9000},
        {"lz_preset": "guarded", "lz_min_match_length": "none"},
        {"lz_preset": "guarded", "lz_gate_low": "none"},
        {"lz_preset": "guarded", "lz_gate_high": 0.4},
        {"lz_preset": "guarded", "lz_gate_window": 2000},
        {"lz_preset": "paper", "lz_gate_low": 0.5},
        {"lz_preset": "paper", "lz_gate_high": 0.5},
        {"lz_penalty": 0.2, "lz_gate_low": 0.6, "lz_gate_high": 0.6},
        {"lz_preset": "failsafe", "lz_gate_low": 0.5, "lz_gate_high": 0.7},
        {"lz_preset": "guarded", "lz_buffer_size": 2},
    ]
    out = []
    while len(out) < count:
        kind = rng.random()
        base = rng.choice(({"lz_penalty": 0.2}, {"lz_preset": "guarded"}, {}))
        if kind < 0.8:
            name = rng.choice(sorted(wrong))
            out.append(base | {name: rng.choice(wrong[name])})
        elif kind < 0.9:
            name = rng.choice(sorted(REQUEST_FIELDS))
            place = rng.randrange(3, len(name))
            out.append(base | {name[:place] + rng.choice("abcxyz_ ") + name[place:]: rng.choice((1, "x"))})
        else:
            out.append(rng.choice(together))
    return out


def nested(depth, kind=list):
    """A value of so many levels, each a list or an object."""
    value = 0
    for _ in range(depth):
        value = [value] if kind is list else {"a": value}
    return value


def hostile():
    """Settings that are made to take long, by their kind. Each must be refused quickly."""
    return {
        "a name of 1,000,000 characters": {"lz_" + "window_" * 142_857: 1},
        "an unknown field of 1,000,000 characters": {"lz_windows": "x" * 1_000_000},
        "a known field of 1,000,000 characters": {"lz_preset": "guarded" * 142_857},
        "a field of 1,000,000 quotes": {"lz_preset": "'\"" * 500_000},
        "100,000 unknown fields": {f"lz_{number}": 1 for number in range(100_000)},
        "100,000 fields of others": {f"field_{number}": 1 for number in range(100_000)} | {"lz_penalty": 0.2},
        "a list nested 1,000 deep": {"lz_penalty": nested(1_000)},
        "a list nested 100,000 deep": {"lz_penalty": nested(100_000)},
        "an object nested 100,000 deep": {"lz_stop_copies": nested(100_000, dict)},
        "an unknown field nested 100,000 deep": {"lz_deep": nested(100_000)},
        "ids nested 100,000 deep": {"lz_penalty": 0.2, "lz_exempt_token_ids": [nested(100_000)]},
        "1,000,000 ids": {"lz_penalty": 0.2, "lz_exempt_token_ids": list(range(1_000_000))},
        "1,000,000 equal ids": {"lz_penalty": 0.2, "lz_exempt_token_ids": [7] * 1_000_000},
        "an object of 100,000 ids": {"lz_penalty": 0.2, "lz_exempt_token_ids": {str(one): 1 for one in range(100_000)}},
        "a list of 1,000,000 lists": {"lz_lookback": [[]] * 1_000_000},
        "an integer of 4,000 digits": {"lz_penalty": 10**4_000},
        "an integer of 100,000 digits": {"lz_penalty": 0.2, "lz_window_size": 10**100_000},
        "an id of 100,000 digits": {"lz_penalty": 0.2, "lz_exempt_token_ids": [10**100_000]},
        "NaN": {"lz_penalty": float("nan")},
        "NaN in a gate": {"lz_preset": "guarded", "lz_gate_low": float("nan")},
        "Infinity": {"lz_penalty": 0.2, "lz_escalation": float("inf")},
        "-Infinity": {"lz_preset": "guarded", "lz_escalation": float("-inf")},
        "a name of lone surrogates": {"lz_" + "\udc80" * 100_000: 1},
        "a value of lone surrogates": {"lz_preset": "\ud800" * 100_000},
    }
