"""Whether an answer is right: compared with an expected one, or matched by a regular expression. Executes nothing."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from lz_penalty._checks import choice
from lz_penalty.errors import LZPenaltyError, bad_value

__all__ = ["Checker"]

COMPARISONS = ("exact", "contains", "number")
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?")


@dataclass(frozen=True)
class Checker:
    """When an answer is right.

    Args:
        comparison: `exact`: the answer is the expected one, but for white space around it; `contains`: the expected one
            occurs in it; `number`: its last number equals the expected one.
        pattern: a regular expression whose last match in the answer is what is compared: its first group, if it has one.
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
        """Whether it is right; `None` where nothing, or no number, is expected. Thinking, up to `</think>`, does not count.

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
