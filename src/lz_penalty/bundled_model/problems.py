"""Generate step-by-step arithmetic and logic problems, with the standard library only.

A problem is a question, numbered reasoning steps between <think> and </think>, and one line `Answer: N`. Equal seeds
give equal problems on every machine. A checksum of its text puts a question into the training or the held-out split, so
the two never share a question.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Sequence
from typing import Literal, NamedTuple

from lz_penalty.bundled_model import _arithmetic, _logic, _numbers

__all__ = ["FAMILIES", "Problem", "extract_answer", "generate", "prompt", "split_of"]

Split = Literal["train", "heldout"]

FAMILIES = {**_arithmetic.FAMILIES, **_numbers.FAMILIES, **_logic.FAMILIES}

_HELDOUT_ONE_IN = 16
_ANSWER = re.compile(r"^Answer:[ \t]*(\S.*?)[ \t]*$", re.MULTILINE)


class Problem(NamedTuple):
    """One problem: the question, the full text of a correct solution, the answer, and the family."""

    question: str
    solution: str
    answer: str
    family: str = ""


def split_of(question: str) -> Split:
    """Return the split of a question, which depends only on its text.

    >>> split_of("Calculate 2 + 2.")
    'train'
    """
    return "heldout" if zlib.crc32(question.encode()) % _HELDOUT_ONE_IN == 0 else "train"


def generate(seed: int, n: int, split: Split = "train", families: Sequence[str] | None = None) -> list[Problem]:
    """Return `n` problems with `n` different questions of one split.

    Args:
        seed: any integer; equal seeds give equal problems.
        n: how many.
        split: "train" or "heldout".
        families: names from `FAMILIES`, by default all. A single family may have too few different questions for a
            large `n`, which raises ValueError.

    >>> first, second = generate(seed=1, n=2, split="heldout", families=["expression"])
    >>> print(prompt(first) + first.solution)
    Question: What is 17 * 6 - 9?
    <think>
    1. 17 * 6 = 102.
    2. 102 - 9 = 93.
    </think>
    Answer: 93
    >>> train = {problem.question for problem in generate(seed=1, n=500)}
    >>> any(problem.question in train for problem in generate(seed=1, n=500, split="heldout"))
    False
    """
    if split not in ("train", "heldout"):
        raise ValueError(f"split must be 'train' or 'heldout', got {split!r}")
    names = list(FAMILIES if families is None else families)
    unknown = [name for name in names if name not in FAMILIES]
    if unknown or not names:
        raise ValueError(f"families must be some of {', '.join(FAMILIES)}; got {names}")
    rng = random.Random(f"lz-penalty problems {seed} {split}")
    found: dict[str, Problem] = {}
    for _ in range(1000 + 100 * n):
        if len(found) >= n:
            break
        family = rng.choice(names)
        question, steps, answer = FAMILIES[family](rng)
        if question not in found and split_of(question) == split:
            found[question] = Problem(question, _solution(steps, answer), answer, family)
    else:
        raise ValueError(f"families {names} have fewer than {n} different {split} questions")
    return list(found.values())


def prompt(problem: Problem | str) -> str:
    r"""Return the text for the model; the solution follows directly.

    >>> prompt("Calculate 2 + 2.")
    'Question: Calculate 2 + 2.\n'
    """
    question = problem if isinstance(problem, str) else problem.question
    return f"Question: {question}\n"


def extract_answer(text: str) -> str | None:
    r"""Return the text after the first `Answer:` that follows the reasoning, or None.

    >>> extract_answer("<think>\n1. 2 + 2 = 4.\n</think>\nAnswer: 4")
    '4'
    >>> extract_answer("<think>\n1. 2 + 2 = 4.\n2. 2 + 2 = 4.\n3. 2 +") is None
    True
    """
    match = _ANSWER.search(text.partition("</think>")[2] or text)
    return match.group(1).rstrip(".") if match else None


def _solution(steps: list[str], answer: str) -> str:
    lines = "\n".join(f"{number}. {step}" for number, step in enumerate(steps, 1))
    return f"<think>\n{lines}\n</think>\nAnswer: {answer}"
