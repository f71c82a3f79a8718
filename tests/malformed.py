"""Request fields that every server must refuse."""

import random

from lz_penalty.config import REQUEST_FIELDS


def malformed(count):
    """Settings that must be refused: wrong types, out of range, unknown, above the cap, contradictory."""
    rng = random.Random(0)
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
        "lz_include_prompt": [2, "true", -1, "no", 0.5],
        "lz_exempt_token_ids": [[-1], [2**31], list(range(1025)), ["a"], "5", 5, [1.5]],
    }
    together = [
        {"lz_preset": "sglang", "lz_lookback": "before_buffer"},
        {"lz_preset": "sglang", "lz_min_match_length": 2},
        {"lz_penalty": 0.2, "lz_buffer_size": 3, "lz_min_match_length": 5},
        {"lz_preset": "guarded", "lz_loop_window": 9000},
        {"lz_buffer_size": 3},
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
