"""Say whether a penalty left an output as it was, so that a greedy output need not be written twice."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from lz_penalty.config import LZPenaltyConfig
from lz_penalty.detection import find_repetition
from lz_penalty.loops import MIN_COPIES
from lz_penalty.reference import copied_positions

__all__ = ["is_idle"]


def is_idle(config: LZPenaltyConfig, output: Sequence[int]) -> bool:
    """Return whether the penalty changes no logit at any step of this output. `True` is certain, `False` may be wrong.

    A penalty that leaves the prompt out is idle while its gate is closed and nothing is a loop. A greedy output without a
    penalty is also the output of every penalty that is idle on it.

    >>> guarded = LZPenaltyConfig.guarded()
    >>> is_idle(guarded, range(300)), is_idle(guarded, [*range(20)] * 15)
    (True, False)
    """
    if config.include_prompt:
        return False
    if config.escalation and find_repetition(output, min_copies=MIN_COPIES, min_length=1):
        return False
    if config.min_match_length is None:
        return True
    return config.gate_low is not None and _largest_share(config, output) <= config.gate_low


def _largest_share(config: LZPenaltyConfig, output: Sequence[int]) -> float:
    """Return the largest copy share of all beginnings of the output."""
    window = config.gate_window
    least = 2 if config.formula == "sglang" else config.min_match_length or 2
    copied = [0, *accumulate(copied_positions(output, config.window_size, least))]
    ends = range(config.effective_gate_from, len(output) + 1)  # the share is 0 before that
    return max(((copied[end] - copied[max(0, end - window)]) / min(window, end) for end in ends), default=0.0)
