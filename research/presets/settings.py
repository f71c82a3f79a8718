"""The settings that the choice of a preset compares, by family. Each has a name that `evaluation.penalties` reads.

Every family has at least six settings, so that no penalty wins because it alone was tuned. The prompt is left out in the
families `guarded` and `gate` unless the name says otherwise.
"""

from __future__ import annotations

from itertools import product

__all__ = ["FAMILIES", "all_settings", "family_of"]

OLD = "paper:0.15,lookback=adjacent,min_match_length=3,escalation=1"  # the preset `guarded` of earlier versions

# The thresholds of a gate that are tried with each minimum match. A long n-gram is rarely copied, so they fall with it.
THRESHOLDS = {
    3: ((0.35, 0.5), (0.35, 0.6), (0.45, 0.6), (0.5, 0.7), (0.6, 0.8)),
    4: ((0.25, 0.45), (0.35, 0.55), (0.45, 0.65), (0.55, 0.75)),
    6: ((0.15, 0.35), (0.25, 0.45), (0.35, 0.55)),
    8: ((0.1, 0.3), (0.2, 0.4), (0.3, 0.5)),
    12: ((0.05, 0.2), (0.1, 0.3), (0.2, 0.4)),
}


def _adjacent(strength: float, least: int, window: int, more: str = "") -> str:
    size = "" if window == 512 else f"window_size={window},"
    return f"paper:{strength:g},lookback=adjacent,{size}min_match_length={least},escalation=1,{more}include_prompt=0"


def _gate(
    strength: float,
    low: float,
    high: float,
    least: int,
    window: int,
    gate_window: int = 96,
    gate_from: int | None = None,
) -> str:
    begin = "" if gate_from is None else f"gate_from={gate_from},"
    more = f"gate_low={low:g},gate_high={high:g},gate_window={gate_window},{begin}"
    return _adjacent(strength, least, window, more)


def _gates() -> list[str]:
    """Return settings with a gate: windows, n-grams, thresholds, strengths and gate windows; then three more grids."""
    tried = [
        _gate(strength, low, high, least, window)
        for window, least in product((96, 128, 192, 256), THRESHOLDS)
        for low, high in THRESHOLDS[least]
        for strength in ((0.2, 0.4, 0.8) if window == 128 else (0.3, 0.6))
    ]
    for strength, least, (low, high) in product((0.2, 0.4), (3, 4), ((0.25, 0.45), (0.35, 0.6))):
        tried.append(_gate(strength, low, high, least, 512))
    for gate_window, strength in product((48, 64, 128, 192), (0.4, 0.8)):
        tried.append(_gate(strength, 0.45, 0.6, 3, 128, gate_window))
    return list(dict.fromkeys([*tried, *_finer(), *_finest(), *_longer()]))


def _finer() -> list[str]:
    """Return the second grid: larger windows, minimum match 3 and 4. It was made when the first one was measured."""
    tried = [
        _gate(strength, low, high, least, window)
        for window, least, strength, (low, high) in product(
            (256, 384, 512), (3, 4), (0.25, 0.3, 0.4), ((0.25, 0.45), (0.3, 0.5), (0.35, 0.5))
        )
        if (least, strength) != (4, 0.25)
    ]
    for window, strength in product((256, 384), (0.3, 0.4)):
        tried.append(_gate(strength, 0.35, 0.5, 3, window, 64))
    return tried


def _finest() -> list[str]:
    """Return the third grid: minimum match 4 and 5. It was made when the second one was measured."""
    tried = {
        (4, 0.25): ((0.25, 0.4), (0.3, 0.45), (0.35, 0.45)),
        (4, 0.35): ((0.35, 0.5), (0.4, 0.55)),
        (4, 0.3): ((0.3, 0.4), (0.4, 0.5)),
        (5, 0.3): ((0.2, 0.4), (0.25, 0.4), (0.3, 0.45)),
        (5, 0.4): ((0.25, 0.45), (0.3, 0.5)),
    }
    return [
        _gate(strength, low, high, least, window)
        for window in (384, 512)
        for (least, strength), thresholds in tried.items()
        for low, high in thresholds
    ]


def _longer() -> list[str]:
    """Return the fourth grid: ten gates over longer windows, six strengths each. It was made when the third was measured.

    Problems had shown that a gate over 96 tokens opens in worked solutions, which repeat short phrases.
    """
    gates = (
        (0.4, 0.5, 384, 384, 48),
        (0.45, 0.55, 384, 384, 48),
        (0.35, 0.5, 384, 384, 48),
        (0.4, 0.5, 384, 256, 48),
        (0.45, 0.55, 384, 256, 48),
        (0.45, 0.55, 384, 192, 48),
        (0.4, 0.5, 384, 512, 48),
        (0.45, 0.55, 384, 192, None),
        (0.4, 0.5, 512, 384, 48),
        (0.5, 0.6, 384, 128, None),
    )
    return [
        _gate(strength, low, high, 4, window, gate_window, gate_from)
        for low, high, window, gate_window, gate_from in gates
        for strength in (0.3, 0.4, 0.5, 0.65, 0.8, 1.0)
    ]


FAMILIES: dict[str, list[str]] = {
    "none": ["none"],
    "repetition": [f"repetition:{value}" for value in (1.02, 1.05, 1.1, 1.15, 1.2, 1.3)],
    "frequency": [f"frequency:{value}" for value in (0.05, 0.1, 0.2, 0.3, 0.5, 1.0)],
    "presence": [f"presence:{value}" for value in (0.2, 0.5, 0.8, 1.0, 1.5, 2.0)],
    "temperature": [f"temperature:{value}" for value in (0.3, 0.5, 0.7, 0.9, 1.0, 1.2)],
    "stop": [f"stop:{copies}" for copies in (3, 4, 5, 8, 12, 20)],
    "no-repeat-ngram": [f"no-repeat-ngram:{value}" for value in (3, 4, 6, 8, 12, 20)],
    "DRY": [
        f"dry:{value},allowed_length={length}{last}"
        for value, length, last in product((0.4, 0.8, 1.6), (2, 4, 8), ("", ",last_n=128"))
    ],
    "DRY with breakers": [
        f"dry:{value},allowed_length={length},breakers=usual" for value, length in product((0.4, 0.8, 1.6), (2, 4, 8))
    ],
    "paper": [f"paper:{value}" for value in (0.05, 0.1, 0.15, 0.2, 0.3, 0.5)],
    "sglang": [f"sglang:{value}" for value in (0.05, 0.1, 0.15, 0.2, 0.3, 0.5)],
    "failsafe": [f"failsafe:{value}" for value in (0.05, 0.1, 0.15, 0.3, 0.5, 1.0)],
    "guarded": [
        OLD,
        f"{OLD},include_prompt=0",
        *(
            _adjacent(strength, least, window)
            for window, strength, least in product((512, 128), (0.1, 0.2, 0.4), (3, 6, 10))
        ),
    ],
    "gate": _gates(),
}


def all_settings() -> list[str]:
    """Return the names of all settings, without penalty first."""
    return [name for names in FAMILIES.values() for name in names]


def family_of(name: str) -> str:
    """Return the family of a setting.

    >>> family_of("paper:0.15")
    'paper'
    """
    return next((family for family, names in FAMILIES.items() if name in names), "other")
