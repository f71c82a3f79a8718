"""What an answer is written with: a penalty, another temperature, or a rule that ends loops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from lz_penalty._checks import integer, real
from lz_penalty.config import PRESETS
from lz_penalty.detection import find_repetitions
from lz_penalty.errors import LZPenaltyError, show
from lz_penalty.evaluation.penalties import Penalty, family, penalty, strength

__all__ = ["NONE", "STOP", "TEMPERATURE", "Setting", "canonical", "cut", "setting"]

NONE, TEMPERATURE, STOP = "none", "temperature", "stop"
OWN = ("repetition", "frequency", "presence")  # vLLM applies these to a whole batch, and makes all its rows slower
STOP_LENGTH = 60  # tokens in copies of one unit, at least, before a text is ended


@dataclass(frozen=True)
class Setting:
    """One setting of a family.

    Args:
        name: as the sweep names it.
        penalty: `none` for a temperature and for stopping.
        temperature: of the sampling, instead of the task's; `None` for the task's.
        stop: how many copies in a row end the text; `None` if loops do not end it.
    """

    name: str
    penalty: Penalty
    temperature: float | None = None
    stop: int | None = None

    @property
    def is_vllms_own(self) -> bool:
        """Whether vLLM itself has this penalty."""
        return family(self.penalty.name) in OWN


@cache
def setting(name: str) -> Setting:
    """Return the setting with this name: a penalty, `temperature:T` or `stop:COPIES`.

    >>> setting("temperature:0.7").temperature, setting("stop:5").stop, setting("guarded:0.3").penalty.config.strength
    (0.7, 5, 0.3)
    """
    kind = family(name)
    if kind not in (TEMPERATURE, STOP):
        return Setting(name, penalty(name))
    try:
        value = strength(name)
    except ValueError:
        value = math.nan
    if "," in name or math.isnan(value):
        raise LZPenaltyError(f"setting {show(name)}: must be {kind}:NUMBER, such as temperature:0.7 or stop:5.")
    if kind == TEMPERATURE:
        return Setting(name, penalty(NONE), temperature=real(0.01, 2.0)(f"setting {name}", value))
    copies = integer(2, 1_000)(f"setting {name}", int(value) if value == int(value) else value)
    return Setting(name, penalty(NONE), stop=copies)


@cache
def canonical(name: str) -> str:
    """Return the shortest name of a setting: the preset with its strength, if that means the same.

    >>> canonical("paper:0.2,lookback=adjacent"), canonical("paper"), canonical("paper:0.15,window_size=512")
    ('paper:0.2,lookback=adjacent', 'paper:0.15', 'paper:0.15')
    >>> canonical("guarded"), canonical("dry:0.8")
    ('guarded:0.4', 'dry:0.8')
    """
    config = None if family(name) in (TEMPERATURE, STOP) else penalty(name).config
    if config is None:
        return name
    for preset, make in PRESETS.items():
        if config == make(strength=config.strength):
            return f"{preset}:{config.strength:g}"
    return name


def cut(tokens: Sequence[int], copies: int) -> list[int] | None:
    """Return the tokens up to the place where so many copies in a row end the text; `None` if they never do.

    The copies must have 60 tokens or more together.

    >>> len(cut([7, *[1, 2, 3] * 40], 5)), cut([1, 2, 3] * 10, 5)
    (61, None)
    """
    found = find_repetitions(tokens, min_copies=copies, min_length=STOP_LENGTH)
    ends = [run.start + max(STOP_LENGTH, copies * run.period) for run in found]
    return list(tokens[: min(ends)]) if ends else None


class Divided:
    """Divides logits by a temperature; has the interface of our baselines, for `bits.forced_by_each`."""

    def __init__(self, temperature: float) -> None:
        self.temperature = temperature

    def penalise_(self, logits: Any, tokens: Any, ends: Any, rows: Any) -> None:
        """Change the logits of all prefixes."""
        logits /= self.temperature
