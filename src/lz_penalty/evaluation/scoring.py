"""Say whether an answer text is right, for the tasks of a study: `is_right`. Nothing is ever executed.

The time is linear in the length of the text, because a model that loops writes long ones. Thinking, up to the last
`</think>`, is not part of an answer. A text without that mark is read as a whole.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable

from lz_penalty._checks import choice
from lz_penalty.errors import bad_value
from lz_penalty.evaluation._equivalence import same_answer
from lz_penalty.evaluation.measures import NUMBER, Checker

__all__ = ["KINDS", "final_answer", "is_right"]

LETTERS = "ABCD"
MAX_PHRASE = 300  # characters after "the answer is" that are read
BRACE = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
STATED = re.compile(r"\banswer\b(?:\s{0,9}\*{0,2}\s{0,9}(?:is|was|equals)\b|\s{0,9}\*{0,2}\s{0,9}[:=])", re.IGNORECASE)
FORMULA = re.compile(  # a dollar sign before a price begins no formula
    r"\$\$([^$]+)\$\$|\$(?!\s)([^$]+)(?<!\s)\$(?!\d)|\\\(((?:[^\\]|\\[^()])*)\\\)|\\\[((?:[^\\]|\\[^\[\]])*)\\\]"
)
SENTENCE = re.compile(r"\.\s|\.$")
GOLD_MARK = "####"  # in GSM8K's answers, before the number

_IS = r"(?:[^\w\n]{0,6}(?i:is|would be|should be)\b|[^\w\\\n]{0,3}[:=]|\s?(?=\())[^\w\\\n]{0,6}"
_COMMAND = r"(?:\\(?:[A-Za-z]{1,12}\s?\{?|[(\[]\s?))?"
STATED_CHOICE = re.compile(
    rf"(?i:\banswer\b|\b(?:correct|right|best)\s(?:option|choice)\b){_IS}(?:(?i:option|choice|letter)\s)?"
    rf"{_COMMAND}[(\[*_]{{0,4}}([{LETTERS}])(?![\w'+-])"
)
BOXED_CHOICE = re.compile(rf"(?:\\[A-Za-z]{{1,12}}|[\s{{(\[*$]){{0,12}}([{LETTERS}])(?:[\s}})\]*$.]*$|\s?[).:,}}])")
OTHER_CHOICES = (  # read only if no answer is stated
    re.compile(rf"\b([{LETTERS}])[)\]*]{{0,3}}\s(?i:is)\s(?i:the\s)?(?i:correct|right)\b"),
    re.compile(rf"^[^\w\\\n]{{0,6}}([{LETTERS}])[^\w\n]{{0,6}}$", re.MULTILINE),
)
ALL_CHOICES = re.compile(r"\\boxed\{A\},? ?\\boxed\{B\},? ?\\boxed\{C\},? ?(?:or |and )?\\boxed\{D\}")


def is_right(kind: str, text: str, expected: str | int) -> bool:
    """Return whether the final answer of a text is the expected one.

    - `gsm8k`: the last number is equal. The expected answer is a number or GSM8K's own answer, with `#### number`.
    - `math`: the last `\\boxed{...}` means the same; without a box, see `final_answer`.
    - `aime`: as `math`; the expected answer is an integer from 0 to 999.
    - `gpqa`: the last letter from A to D that is named as the answer is equal. The expected answer may be in a box.

    >>> is_right("gsm8k", "6 * 7 = 42, so 42 eggs.", "6 and 7 give #### 42")
    True
    >>> is_right("math", r"Hence \\boxed{x = \\frac12}.", "0.5"), is_right("aime", r"\\boxed{042}", 42)
    (True, True)
    >>> is_right("gpqa", "Answer: A? No. The correct answer is (C).", r"\\boxed{C}")
    True
    """
    choice(*KINDS)("kind", kind)
    if isinstance(expected, bool) or not isinstance(expected, (str, int)) or not str(expected).strip():
        raise bad_value("expected", expected, "a text or an integer", "Give the answer of the task's file.")
    return KINDS[kind](text.rpartition("</think>")[2], str(expected).strip())


def final_answer(text: str) -> str | None:
    """Return the final answer of a mathematical text; `None` if it has none.

    This is the content of the last `\\boxed{...}` that is closed and not empty. Without one, it is what follows the last
    "answer is" or "answer:", or else the last formula, or else the last number.

    >>> final_answer(r"First \\boxed{1}, then \\boxed{\\frac{1}{2}}, then \\boxed{3")
    '\\\\frac{1}{2}'
    >>> final_answer("The answer is $x = 3$. Check: 3 + 1 = 4."), final_answer("7 and 8"), final_answer("No idea.")
    ('x = 3', '8', None)
    """
    for start, end in reversed(_boxes(text)):
        if content := text[start:end].strip():
            return content
    return _stated(text) or _formula(text) or _last_number(text)


def _gsm8k(text: str, expected: str) -> bool:
    right = Checker("number").right(text, expected.rpartition(GOLD_MARK)[2].strip())
    if right is None:
        raise bad_value("expected", expected, "a number, or a text that ends with #### and a number")
    return right


def _math(text: str, expected: str) -> bool:
    given = final_answer(text)
    return given is not None and same_answer(given, expected)


def _aime(text: str, expected: str) -> bool:
    if not re.fullmatch(r"[0-9]{1,3}", expected):
        raise bad_value("expected", expected, "an integer from 0 to 999", "Use kind 'math' for other answers.")
    return _math(text, expected)


def _gpqa(text: str, expected: str) -> bool:
    wanted = _choice(expected)
    if wanted is None:
        raise bad_value("expected", expected, f"one of the letters {', '.join(LETTERS)}, bare or in \\boxed{{}}")
    return _choice(text) == wanted


KINDS: dict[str, Callable[[str, str], bool]] = {"gsm8k": _gsm8k, "math": _math, "aime": _aime, "gpqa": _gpqa}


# ---------------------------------------------------------------- finding answers


def _boxes(text: str) -> list[tuple[int, int]]:
    """Return where the content of each closed box begins and ends, in the order in which the boxes begin."""
    opened, boxes = list[tuple[int, bool]](), list[tuple[int, int]]()
    for found in BRACE.finditer(text):
        if found[0].endswith("{") and found[0] != "\\{":
            opened.append((found.end(), found[0] != "{"))
        elif found[0] == "}" and opened:
            start, is_box = opened.pop()
            if is_box:
                boxes.append((start, found.start()))
    return sorted(boxes)


def _stated(text: str) -> str | None:
    """Return what follows the last "answer is": the first formula of the line, or the rest of the sentence."""
    last = _last(STATED, text)
    if last is None:
        return None
    line = text[last.end() : last.end() + MAX_PHRASE].lstrip(" \n*:").partition("\n")[0]
    if (formula := FORMULA.search(line)) and formula.lastindex:
        return formula[formula.lastindex].strip()
    return SENTENCE.split(line, maxsplit=1)[0].strip(" *") or None


def _formula(text: str) -> str | None:
    last = _last(FORMULA, text)
    return last[last.lastindex].strip() if last and last.lastindex else None


def _last_number(text: str) -> str | None:
    last = _last(NUMBER, text)
    return last[0].rstrip(",") if last else None


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    last = deque(pattern.finditer(text), maxlen=1)
    return last[0] if last else None


def _choice(text: str) -> str | None:
    """Return the letter that a text names last as its answer."""
    text = ALL_CHOICES.sub("", text)  # the instruction, if a model repeats it
    found = [match for start, end in _boxes(text) if (match := BOXED_CHOICE.match(text, start, end))]
    found += list(STATED_CHOICE.finditer(text))
    for pattern in OTHER_CHOICES:
        found = found or list(pattern.finditer(text))
    return max(found, key=lambda match: match.start(1))[1] if found else None
