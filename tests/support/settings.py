"""Settings for tests with short texts, where the gate of the preset `guarded` is closed: it needs 48 tokens to open."""

from lz_penalty import LZPenaltyConfig

# `guarded` without its gate, with the prompt: penalises the first repeat of three tokens, wherever it is.
UNGATED = LZPenaltyConfig.guarded(strength=0.15, min_match_length=3, gate_low=None, gate_high=None, include_prompt=True)


def ungated(strength: float = UNGATED.strength) -> str:
    """Return the name of the penalty `UNGATED` with this strength.

    >>> from lz_penalty.evaluation.penalties import penalty
    >>> penalty(ungated()).config == UNGATED
    True
    """
    return f"guarded:{strength},min_match_length=3,gate_low=none,gate_high=none,include_prompt=1"
