"""Scoring of answers: what counts as right, on invented problems only."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lz_penalty import LZPenaltyError
from lz_penalty.evaluation._equivalence import same_answer
from lz_penalty.evaluation.scoring import KINDS, final_answer, is_right

SAME = [
    ("1/2", r"\frac{1}{2}"),
    (r"\frac12", "0.5"),
    (r"\dfrac 3 7", r"\tfrac{3}{7}"),
    (r"\frac{81}7", "81/7"),
    (".50", "0.5"),
    ("007", "7"),
    ("12.", "12"),
    (r"4,\!321", "4321"),
    ("4,321", r"4{,}321"),
    (r"4\,321", "4321"),
    (r"2\frac{1}{3}", r"\frac{7}{3}"),
    ("2 1/3", r"\frac{7}{3}"),
    (r"\$12.50", "12.5"),
    (r"35\%", "35"),
    (r"77^\circ", "77"),
    (r"77^{\circ}", "77 degrees"),
    (r"19 \text{ cm}^2", "19"),
    (r"19\mbox{ inches}^{2}", "19 square inches"),
    (r"\text{north}", "North"),
    (r"\text{(D)}", "D"),
    (r"\textbf{(D)}", "(D)"),
    ("x = 9", "9"),
    ("m + n = 61", "61"),
    (r"f(3) = 9", "9"),
    (r"t \in (2, 5]", "(2,5]"),
    ("(x, y) = (1, 2)", "(1,2)"),
    (r"\left( 2,\ \frac{\pi}{3} \right)", r"(2, \pi/3)"),
    (r"\left[-1, \infty\right)", r"[-1,\infty)"),
    (r"(7,8) \cup (1,2)", r"(1,2)\cup(7,8)"),
    ("5, 3, 4", "3,4,5"),
    (r"x = 3 \text{ or } x = 5", "5, 3"),
    (r"\{2, 9\}", "9, 2"),
    (r"\text{Ada}, \text{Boole}", "Boole, Ada"),
    (r"4 \pm \sqrt{7}", r"4 - \sqrt{7}, 4 + \sqrt{7}"),
    (r"\frac{5\sqrt{3}}{4}", r"\frac{5}{4}\sqrt3"),
    (r"\sqrt{45}", r"3\sqrt{5}"),
    ("√45", "3 sqrt(5)"),
    (r"\sqrt[3]{16}", r"2\sqrt[3]{2}"),
    ("2^{10}", "1024"),
    ("2^(1/2)", r"\sqrt2"),
    ("5!", "120"),
    (r"\frac{7+3b}{10}", "(3b + 7)/10"),
    ("2n^2+n+5", "5 + n + 2n^{2}"),
    ("4 - 3i", "-3i+4"),
    (r"\tan x", r"\tan(x)"),
    (r"12\cdot 3", "36"),
    (r"24_{7}", "24_7"),
    (r"\begin{pmatrix} 1/2 \\ -3 \end{pmatrix}", r"\begin{bmatrix} 0.5 \\ -3 \end{bmatrix}"),
    (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{pmatrix}1&2\\3&4\\\end{pmatrix}"),
    ("(k+1)(k-4)", "(k-4)(k+1)"),
    ("3x + 2y = 8", "2y+3x=8"),
]
DIFFERENT = [
    ("", "0"),
    ("0.333", r"\frac{1}{3}"),
    ("12345678901234567890", "12345678901234567891"),
    ("24_7", "24"),
    ("24_7", "24_8"),
    ("(1,2)", "(2,1)"),
    ("(1,2]", "[1,2)"),
    ("(1,2)", "[1,2]"),
    ("1,2", "12"),
    ("1, 2", "1, 2, 3"),
    ("1, 1, 2", "1, 2, 2"),
    ("(k+1)(k-4)", "k^2 - 3k - 4"),
    ("(k+1)^2", "k^2+2k+1"),
    ("x", "y"),
    ("x =", "5"),
    (r"\{\}", "5"),
    ("2x", "2"),
    ("-5", "5"),
    (r"\text{north}", r"\text{thorn}"),
    (r"\text{(D)}", r"\text{(E)}"),
    ("3x + 2y = 0", "0"),
    ("35", "0.35"),
    (r"\frac{1}{0}", "1"),
    (r"4 \pm \sqrt{7}", r"4 + \sqrt{7}"),
    (r"\begin{pmatrix} 1 & 2 \end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
    ("{" * 400, "1"),
    ("(" * 400 + "1", "1"),
    ("9^{9^{9^{9}}}", "1"),
    (r"\pi^{600} \pi^{600}", r"\pi^{600} \pi^{601}"),
    ("-" * 450 + "1", "(2"),
    ("x <= 3", "x >= 3"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_answers_that_mean_the_same(one, other):
    assert same_answer(one, other)
    assert same_answer(other, one)
    assert is_right("math", rf"So \boxed{{{one}}}.", other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_answers_that_differ(one, other):
    assert not same_answer(one, other)
    assert not same_answer(other, one)


@given(st.text(r"0123abxi+-*/^_{}()[],.=\ $%!&" + '"', max_size=60), st.text("01x+-/(){}", max_size=20))
def test_any_text_can_be_compared(one, other):
    assert same_answer(one, other) == same_answer(other, one)
    assert same_answer(one, one) == bool(one.strip())


@given(st.integers(-999, 999), st.integers(1, 999))
def test_fractions_are_numbers(numerator, denominator):
    fraction = rf"\frac{{{numerator}}}{{{denominator}}}"
    assert same_answer(fraction, f"{numerator * 3}/{denominator * 3}")
    assert not same_answer(fraction, rf"\frac{{{numerator + 1}}}{{{denominator}}}")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{1} and \boxed{\{2, \sqrt{3}\}}", r"\{2, \sqrt{3}\}"),
        (r"\boxed{\boxed{4}}", "4"),
        (r"put it in \boxed{}. So \boxed {6}. Again in \boxed{ }", "6"),
        (r"\boxed{5} and then \boxed{5 + ", "5"),
        (r"a set { and \boxed{5}", "5"),
        ("The answer is 12. It took 3 steps.", "12"),
        ("**Final Answer:** $\\frac{1}{9}$, as 9 * 1 = 9", r"\frac{1}{9}"),
        ("Answer: 4.5", "4.5"),
        (r"Hence \(x = 8\) and so on for 20 pages", "x = 8"),
        ("It costs $5 and then $6 more", "6"),
        ("nothing", None),
        ("", None),
    ],
)
def test_the_final_answer_is_found(text, answer):
    assert final_answer(text) == answer


def test_thinking_is_no_answer():
    assert is_right("math", r"<think>\boxed{3}</think> \boxed{4}", "4")
    assert not is_right("math", r"<think>\boxed{4}</think> I do not know.", "4")


@pytest.mark.parametrize(
    ("text", "expected", "right"),
    [
        ("3 + 4 = 7\n#### 7", "7", True),
        ("It costs $1,200.00.", "so #### 1,200", True),
        ("It is 7, not 8", "7", False),
        ("no number", "7", False),
    ],
)
def test_gsm8k_compares_the_last_number(text, expected, right):
    assert is_right("gsm8k", text, expected) is right


def test_aime_compares_integers():
    assert is_right("aime", r"\boxed{m+n = 061}", 61)
    assert is_right("aime", "The answer is 61.", "061")
    assert not is_right("aime", r"\boxed{61.5}", 61)


@pytest.mark.parametrize(
    "text",
    [
        "Answer: C",
        "**Answer:** (C)",
        r"The final answer is $\boxed{C}$.",
        r"\boxed{\text{C}}",
        r"\boxed{(C)}",
        r"\boxed{C. Three apples}",
        r"\boxed{\mathbf{(C)}}",
        "The correct answer is (C).",
        "The correct answer is option C because apples fall.",
        "the correct option is **C**",
        "ANSWER: C",
        r"answer is \(C\)",
        "Answer: A. But no: the answer is C",
        r"\boxed{A} was wrong. \boxed{C}",
        r"\boxed{A}? The correct answer is (C)",
        r"\boxed{C}. Hence statement A is correct.",
        r"\boxed{C}. I wrote \boxed{A}, \boxed{B}, \boxed{C}, or \boxed{D} as asked.",
        "Option A is wrong. (C) is correct.",
        "C",
        "(C)\n",
        "Because of apples:\n\n**C**",
        "<think>The answer is A</think>The answer is C",
    ],
)
def test_a_choice_is_read(text):
    assert is_right("gpqa", text, "C")
    assert is_right("gpqa", text, r"\boxed{C}")
    assert not is_right("gpqa", text, "A")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Option C is wrong.",
        "The answer is Carbon",
        r"\boxed{Carbon}",
        r"\boxed{C_2}",
        "Answer: C-14",
        "a big C here",
    ],
)
def test_what_names_no_choice_is_wrong(text):
    assert not is_right("gpqa", text, "C")


@pytest.mark.parametrize(
    ("kind", "expected", "message"),
    [
        ("history", "1", "kind = 'history': must be one of 'gsm8k'"),
        ("aime", "1000", "expected = '1000': must be an integer from 0 to 999"),
        ("gpqa", "E", "expected = 'E': must be one of the letters"),
        ("gsm8k", "many", "expected = 'many': must be a number"),
        ("math", " ", "expected = ' ': must be a text"),
        ("aime", True, "expected = True: must be"),
    ],
)
def test_a_mistake_is_explained(kind, expected, message):
    with pytest.raises(LZPenaltyError, match=message.replace("(", r"\(")):
        is_right(kind, "5", expected)


HOSTILE = (
    "\\boxed{",
    "\\boxed{A",
    "}",
    "{",
    "$",
    "\\(",
    "\\[ x ",
    "the answer is ",
    "answer **",
    "answer: \\",
    " ",
    "1,",
    "1.",
    "-",
    "\\boxed{}",
    "(A",
    "\n(",
    "\\",
    "A is ",
    "</think>",
)


@pytest.mark.parametrize("piece", HOSTILE)
def test_a_loop_is_read_in_linear_time(piece):
    """Each text has 200,000 characters; quadratic time would take minutes."""
    text = piece * (200_000 // len(piece))
    begin = time.process_time()
    for expected, kind in zip(("5", "5", "5", "B"), KINDS):
        assert not is_right(kind, text, expected)
        assert not is_right(kind, text + "}" * 10_000, expected)
    assert time.process_time() - begin < 5
