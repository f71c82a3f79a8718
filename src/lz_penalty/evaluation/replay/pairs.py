"""Judge and count the answers without and with the penalty."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from lz_penalty.evaluation.measures import Checker, loop_in
from lz_penalty.evaluation.replay.sending import Answer

__all__ = ["Judged", "Side", "Summary", "judge"]


@dataclass(frozen=True)
class Judged(Answer):
    """An answer, whether it is a loop, the characters that the loop wastes, and whether it is right, if known."""

    loop: bool = False
    wasted: int = 0
    right: bool | None = None


def judge(answer: Answer, expected: str | None, criteria: Sequence[str], checker: Checker | None) -> Judged:
    """Judge one answer."""
    loop = loop_in(answer.whole, criteria)
    right = checker.right(answer.text, expected) if checker else None
    return Judged(**asdict(answer), loop=loop is not None, wasted=(loop.wasted or 0) if loop else 0, right=right)


@dataclass
class Side:
    """Counts of all answers without, or with, the penalty: loops, wasted characters, cut off, right, tokens."""

    loops: int = 0
    wasted: int = 0
    cut_off: int = 0
    right: int = 0
    tokens: int = 0


@dataclass
class Summary:
    """Counts of what the penalty changed.

    Args:
        replayed: requests with both answers.
        problems: lines and requests that could not be replayed.
        sampled: replayed requests whose answers may differ by chance alone.
        without, with_penalty: counts of the answers without and with the penalty.
        loops_broken, loops_made: requests whose answer is a loop only without, or only with the penalty.
        changed: requests whose two answers differ.
        counted: requests whose tokens the server counted both times.
        checked: requests whose answers could be checked.
        lost, won: answers that are right only without, or only with the penalty.
    """

    replayed: int = 0
    problems: int = 0
    sampled: int = 0
    without: Side = field(default_factory=Side)
    with_penalty: Side = field(default_factory=Side)
    loops_broken: int = 0
    loops_made: int = 0
    changed: int = 0
    counted: int = 0
    checked: int = 0
    lost: int = 0
    won: int = 0

    def add(self, without: Judged, with_penalty: Judged, sampled: bool) -> None:
        """Count one request."""
        self.replayed += 1
        self.sampled += sampled
        self.changed += without.whole != with_penalty.whole
        self.loops_broken += without.loop and not with_penalty.loop
        self.loops_made += with_penalty.loop and not without.loop
        for side, answer in ((self.without, without), (self.with_penalty, with_penalty)):
            side.loops += answer.loop
            side.wasted += answer.wasted
            side.cut_off += answer.finish == "length"
            side.right += bool(answer.right)
        if without.tokens is not None and with_penalty.tokens is not None:
            self.counted += 1
            self.without.tokens += without.tokens
            self.with_penalty.tokens += with_penalty.tokens
        if without.right is not None:
            self.checked += 1
            self.lost += without.right and not with_penalty.right
            self.won += bool(with_penalty.right) and not without.right

    @property
    def tokens_saved(self) -> int:
        """How many fewer tokens the answers with the penalty have."""
        return self.without.tokens - self.with_penalty.tokens

    @property
    def p_value(self) -> float | None:
        """The p value of the exact sign test that lost and won differ by chance alone.

        >>> Summary(lost=0, won=6).p_value
        0.03125
        """
        count = self.lost + self.won
        if not count:
            return None
        tail = sum(math.comb(count, i) for i in range(min(self.lost, self.won) + 1)) / 2**count
        return min(1.0, 2 * tail)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self) | {"tokens_saved": self.tokens_saved, "p_value": self.p_value}
