"""The settings that the choice of a preset compares, by family. Each has a name that `evaluation.penalties` reads.

Every family has at least six settings, so that no penalty wins because it alone was tuned. The prompt is left out in the
LZ families unless the name says `include_prompt=1`.
"""

from __future__ import annotations

from itertools import product

__all__ = ["FAMILIES", "all_settings", "family_of"]


def _guarded() -> list[str]:
    """Return settings without a gate: the preset `guarded` of earlier versions first."""
    old = "paper:0.15,lookback=adjacent,min_match_length=3,escalation=1"
    tried = [old, f"{old},include_prompt=0"]
    for strength, least in product((0.1, 0.2, 0.4), (3, 6, 10)):
        tried.append(f"paper:{strength},lookback=adjacent,min_match_length={least},escalation=1,include_prompt=0")
    return tried


def _gated() -> list[str]:
    """Return settings with a gate: a coarse grid first, and then a fine one where the coarse one was best."""
    tried = []
    for least, (low, high), window, strength in product(
        (3, 5, 8), ((0.35, 0.6), (0.5, 0.7), (0.65, 0.85), (0.8, 0.95)), (96, 256), (0.2, 0.4, 0.8)
    ):
        tried.append(_gate(strength, low, high, window, least))
    return tried + _refined()


def _refined() -> list[str]:
    pairs = {
        0.15: ((0.2, 0.4), (0.25, 0.45), (0.3, 0.5), (0.35, 0.6)),
        0.2: ((0.2, 0.4), (0.25, 0.45), (0.25, 0.5), (0.3, 0.5), (0.3, 0.6), (0.35, 0.5)),
        0.25: ((0.25, 0.5), (0.3, 0.5), (0.3, 0.6), (0.35, 0.5), (0.35, 0.6)),
        0.3: ((0.3, 0.5), (0.3, 0.6), (0.35, 0.5), (0.35, 0.6), (0.4, 0.6)),
    }
    tried = [_gate(strength, low, high, 96, 3) for strength, thresholds in pairs.items() for low, high in thresholds]
    for strength, low, high in ((0.2, 0.3, 0.5), (0.2, 0.35, 0.6), (0.25, 0.35, 0.6), (0.3, 0.4, 0.6)):
        tried.append(_gate(strength, low, high, 64, 3))
    for strength, low, high in ((0.2, 0.25, 0.45), (0.3, 0.25, 0.5), (0.3, 0.3, 0.5)):
        tried.append(_gate(strength, low, high, 96, 4))
    return [*tried, _gate(0.15, 0.4, 0.6, 96, 2), _gate(0.2, 0.4, 0.6, 96, 2)]


def _gate(strength: float, low: float, high: float, window: int, least: int) -> str:
    return (
        f"paper:{strength},lookback=adjacent,min_match_length={least},escalation=1,"
        f"gate_low={low},gate_high={high},gate_window={window},include_prompt=0"
    )


FAMILIES: dict[str, list[str]] = {
    "none": ["none"],
    "repetition": [f"repetition:{value}" for value in (1.02, 1.05, 1.1, 1.15, 1.2, 1.3)],
    "frequency": [f"frequency:{value}" for value in (0.05, 0.1, 0.2, 0.3, 0.5, 1.0)],
    "presence": [f"presence:{value}" for value in (0.2, 0.5, 0.8, 1.0, 1.5, 2.0)],
    "no-repeat-ngram": [f"no-repeat-ngram:{value}" for value in (3, 4, 6, 8, 12, 20)],
    "DRY": [f"dry:{value},allowed_length={length}" for value in (0.2, 0.4, 0.8, 1.6) for length in (2, 3, 4, 6, 8, 12)],
    "DRY with breakers": [
        f"dry:{value},allowed_length={length},breakers=usual" for value in (0.2, 0.4, 0.8, 1.6) for length in (2, 4, 8)
    ],
    "paper": [f"paper:{value}" for value in (0.05, 0.1, 0.15, 0.2, 0.3, 0.5)],
    "sglang": [f"sglang:{value}" for value in (0.05, 0.1, 0.15, 0.2, 0.3, 0.5)],
    "failsafe": [f"failsafe:{value}" for value in (0.05, 0.1, 0.15, 0.3, 0.5, 1.0)],
    "guarded": _guarded(),
    "gate": _gated(),
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
