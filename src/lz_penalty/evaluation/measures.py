"""Measure an output: repetition in its tokens and in its text, and whether its answer is right.

The paper's criterion is `detection.paper20`: a substring of 3 characters or more occurs 20 times or more, anywhere. Long
healthy texts meet it too, because " the" occurs that often. `degenerate` therefore asks for 20 copies in a row.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lz_penalty._checks import choice
from lz_penalty.bundled_model import problems
from lz_penalty.detection import distinct, find_repetition, is_degenerate, is_loop
from lz_penalty.detection._substrings import MIN_LENGTH
from lz_penalty.detection._tandem import DEGENERATE_COPIES
from lz_penalty.detection._verdict import CRITERIA, Limits, Verdict
from lz_penalty.errors import LZPenaltyError, bad_value

__all__ = ["DEGENERATE", "Checker", "is_near_loop", "is_solved", "loop_in", "mean", "of_text", "of_tokens"]

DEGENERATE_CHARACTERS = DEGENERATE_COPIES * MIN_LENGTH
DEGENERATE = f"a unit occurs {DEGENERATE_COPIES} times or more in a row, in {DEGENERATE_CHARACTERS} characters or more"
COMPARISONS = ("exact", "contains", "number")
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?")


# ---------------------------------------------------------------- repetition


def of_tokens(outputs: Sequence[Sequence[int]]) -> dict[str, float]:
    """Return the means over outputs, given as token ids.

    - degenerate: the share in which a unit occurs 20 times or more in a row
    - loops: the share in which a unit occurs 5 times or more in a row, in 60 tokens or more
    - near_loops: the share of near-loops, see `is_near_loop`
    - distinct_4: the share of different 4-grams

    >>> of_tokens([[1, 2, 3] * 20, list(range(60))])
    {'degenerate': 0.5, 'loops': 0.5, 'near_loops': 0.5, 'distinct_4': 0.5263157894736842}
    """
    different = [distinct(tokens, 4) for tokens in outputs]
    return {
        "degenerate": mean(is_degenerate(tokens) for tokens in outputs),
        "loops": mean(is_loop(tokens) for tokens in outputs),
        "near_loops": mean(map(is_near_loop, different)),
        "distinct_4": mean(different),
    }


def is_near_loop(distinct_4: float) -> bool:
    """Return whether an output, however short, is a near-loop: less than half of its 4-grams are different.

    >>> is_near_loop(distinct([1, 2, 3] * 3, 4)), is_near_loop(distinct([1, 2, 3] * 4, 4))
    (False, True)
    """
    return distinct_4 < 0.5


def of_text(text: str, tokens: int) -> dict[str, float]:
    """Return the measures of one text of so many tokens.

    - exact: the paper's criterion, `paper20`
    - degenerate: a unit occurs 20 times or more in a row, in 60 characters or more
    - loop: the text ends inside copies of one unit (criterion `tandem`)
    - onset: the tokens until the first copy of the loop ends; not a number without a loop
    - wasted: the tokens of the copies after the first
    - tokens: the length

    Onset and waste are counted in characters and scaled to tokens, because servers return text.

    >>> of_text("Once. " + "No! " * 30, 100)["degenerate"]
    1.0
    """
    run = find_repetition(text, min_copies=DEGENERATE_COPIES, min_length=DEGENERATE_CHARACTERS)
    loop = loop_in(text, ["tandem"])
    onset, wasted = math.nan, 0.0  # characters until the first copy ends, and those of the other copies
    if loop is not None:
        onset, wasted = loop.start + len(loop.unit), float(loop.wasted or 0)
    elif run is not None:
        onset, wasted = run.start + run.period, float(run.length - run.period)
    per_character = tokens / len(text) if text else 0.0
    return {
        "exact": float(loop_in(text, ["paper20"]) is not None),
        "degenerate": float(run is not None),
        "loop": float(loop is not None),
        "onset": onset * per_character,
        "wasted": wasted * per_character,
        "tokens": float(tokens),
    }


def loop_in(text: str, criteria: Iterable[str]) -> Verdict | None:
    """Return the loop that wastes most among those that the criteria find; `None` if none of them finds one."""
    found = [verdict for name in criteria if (verdict := CRITERIA[name](text, Limits()))]
    return max(found, key=lambda verdict: verdict.wasted or 0, default=None)


def mean(values: Iterable[float]) -> float:
    """Return the mean; 0 for no values."""
    given = list(values)
    return sum(given) / len(given) if given else 0.0


# ---------------------------------------------------------------- right answers


def is_solved(text: str, answer: str) -> bool:
    """Return whether the line `Answer: N` of a bundled reasoning problem is right."""
    return problems.extract_answer(text) == answer


@dataclass(frozen=True)
class Checker:
    """When an answer is right. A checker only compares texts; it executes nothing.

    Args:
        comparison: `exact`: the answer equals the expected one, apart from white space around it; `contains`: the
            expected answer occurs in it; `number`: its last number equals the expected one.
        pattern: a regular expression. Its last match in the answer is compared, or the match's first group if it has one.
        expects: whether requests come with an expected answer. If not, an answer is right if the pattern matches.
    """

    comparison: str = "exact"
    pattern: str | None = None
    expects: bool = True

    def __post_init__(self) -> None:
        if self.pattern is None and not self.expects:
            raise LZPenaltyError("a checker needs expected answers or a pattern.")
        choice(*COMPARISONS)("comparison", self.comparison)
        try:
            re.compile(self.pattern or "")
        except re.error as error:
            raise bad_value("pattern", self.pattern, f"a regular expression ({error})") from None

    def right(self, answer: str, expected: str | None) -> bool | None:
        """Return whether the answer is right; `None` if no answer, or no number, is expected.

        Thinking, up to `</think>`, is not part of the answer.

        >>> Checker("number").right("<think>6 * 7</think> It is 42.", "42.0")
        True
        >>> Checker(pattern=r"Answer: (\\w+)").right("Answer: A. No. Answer: B", "B")
        True
        """
        if self.expects and expected is None:
            return None
        given = answer.rpartition("</think>")[2]
        if self.pattern is not None:
            matches = list(re.finditer(self.pattern, given))
            if not matches or expected is None:
                return bool(matches)
            given = matches[-1].group(1 if matches[-1].re.groups else 0) or ""
        assert expected is not None
        if self.comparison == "number":
            numbers, wanted = NUMBER.findall(given), _number(expected)
            return None if wanted is None else bool(numbers) and math.isclose(_number(numbers[-1]) or 0.0, wanted)
        if self.comparison == "contains":
            return expected.strip() in given
        return given.strip() == expected.strip()


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None
