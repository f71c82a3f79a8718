"""Calculate the value of a mathematical expression, given as the tokens of `_latex`. Nothing is ever executed.

Rational numbers are exact. Roots, powers and functions give complex floating-point numbers. A letter gets a value that
depends only on its name and on the number of the point, so that two expressions can be compared at several points.
"""

from __future__ import annotations

import cmath
import math
import random
from collections.abc import Callable, Sequence
from fractions import Fraction

__all__ = ["equal_values", "is_number"]

MAX_DEPTH = 40  # levels of nested groups
MAX_BITS = 4_000  # of an exact number
POINTS = 3
CLOSE = 1e-9
FUNCTIONS: dict[str, Callable[[complex], complex]] = {
    "\\sin": cmath.sin,
    "\\cos": cmath.cos,
    "\\tan": cmath.tan,
    "\\cot": lambda x: 1 / cmath.tan(x),
    "\\sec": lambda x: 1 / cmath.cos(x),
    "\\csc": lambda x: 1 / cmath.sin(x),
    "\\arcsin": cmath.asin,
    "\\arccos": cmath.acos,
    "\\arctan": cmath.atan,
    "\\ln": cmath.log,
    "\\log": cmath.log10,
    "\\exp": cmath.exp,
}
GREEK = frozenset(
    {
        "\\alpha",
        "\\beta",
        "\\gamma",
        "\\delta",
        "\\theta",
        "\\phi",
        "\\varphi",
        "\\lambda",
        "\\mu",
        "\\omega",
        "\\sigma",
        "\\rho",
        "\\tau",
    }
)

Number = Fraction | complex


class _UnknownError(Exception):
    """The tokens are not an expression of the kind that is understood here."""


def is_number(token: str) -> bool:
    """Return whether a token is a decimal number."""
    return token[:1].isdigit() or (token[:1] == "." and token[1:2].isdigit())


def equal_values(one: Sequence[str], other: Sequence[str]) -> bool:
    """Return whether two expressions have the same value, for all values of their letters.

    Expressions with letters must also have equally many products of sums: the task may have been to factor or to expand.

    >>> equal_values(["2", "x", "+", "1"], ["1", "+", "x", "*", "2"]), equal_values(["2"], ["2", "x"])
    (True, False)
    """
    for point in range(POINTS):
        try:
            left, right = _Reader(one, point), _Reader(other, point)
            values = left.whole(), right.whole()
        except (_UnknownError, ArithmeticError, ValueError):
            return False
        letters = left.letters | right.letters
        if not _close(*values) or (letters and left.products != right.products):
            return False
        if not letters:
            return True
    return True


def _close(one: Number, other: Number) -> bool:
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return one == other
    left, right = complex(one), complex(other)
    finite = cmath.isfinite(left) and cmath.isfinite(right)
    return finite and cmath.isclose(left, right, rel_tol=CLOSE, abs_tol=1e-12)


class _Reader:
    """A recursive descent over the tokens. Each method returns the value of what it has read."""

    def __init__(self, tokens: Sequence[str], point: int) -> None:
        self.tokens, self.point = tokens, point
        self.place = self.depth = self.products = 0
        self.letters: set[str] = set()
        self.is_sum = False  # whether the last group that was read is a sum

    def whole(self) -> Number:
        value = self.sum()
        if self.place != len(self.tokens):
            raise _UnknownError
        return value

    def next(self) -> str:
        return self.tokens[self.place] if self.place < len(self.tokens) else ""

    def take(self, wanted: str = "") -> str:
        token = self.next()
        if not token or (wanted and token != wanted):
            raise _UnknownError
        self.place += 1
        return token

    def sum(self) -> Number:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _UnknownError
        total, terms = self.product(), 1
        while self.next() in ("+", "-"):
            sign = 1 if self.take() == "+" else -1
            total, terms = _checked(total + sign * self.product()), terms + 1
        self.depth -= 1
        self.is_sum = terms > 1
        return total

    def product(self) -> Number:
        sign = 1
        while self.next() in ("+", "-"):
            sign *= 1 if self.take() == "+" else -1
        first = self.place
        value = self.power()
        if self._is_mixed(first):
            value = value + self.power()
        sums = self.is_sum
        while self.next() in ("*", "/") or self._starts_factor():
            operator = self.take() if self.next() in ("*", "/") else "*"
            negative = self.next() == "-" and bool(self.take())
            factor = self.power() * (-1 if negative else 1)
            self.products += sums and self.is_sum and operator == "*"
            sums = sums or self.is_sum
            value = _checked(value * factor if operator == "*" else value / factor)
        self.is_sum = sums
        return sign * value

    def power(self) -> Number:
        value = self.atom()
        if self.next() == "!":
            self.take()
            value = _factorial(value)
        if self.next() == "^":
            self.take()
            was_sum = self.is_sum
            exponent = self.group()
            self.products += was_sum
            self.is_sum = was_sum
            value = _power(value, exponent)
        return value

    def group(self) -> Number:
        self.take("{")
        value = self.sum()
        self.take("}")
        return value

    def atom(self) -> Number:
        token = self.take()
        self.is_sum = False
        if is_number(token):
            if self.next() == "_":  # a number in another base
                raise _UnknownError
            return Fraction(token)
        if token in ("(", "{"):
            value = self.sum()
            self.take(")" if token == "(" else "}")
            return value
        if token == "\\frac":
            numerator = self.group()
            value = _checked(numerator / self.group())
            self.is_sum = False
            return value
        if token == "\\sqrt":
            return self._root()
        if token in FUNCTIONS:
            return self._function(FUNCTIONS[token])
        return self._letter(token)

    def _root(self) -> Number:
        degree: Number = Fraction(2)
        if self.next() == "[":
            self.take()
            degree = self.sum()
            self.take("]")
        value = _power(self.group(), 1 / degree)
        self.is_sum = False
        return value

    def _function(self, function: Callable[[complex], complex]) -> Number:
        exponent: Number = Fraction(1)
        if self.next() == "^":
            self.take()
            exponent = self.group()
        value = self.power()
        while self._starts_factor() and self.next() not in FUNCTIONS and self.next() != "(":
            value = _checked(value * self.power())
        self.is_sum = False
        return _power(function(complex(value)), exponent)

    def _letter(self, token: str) -> Number:
        if token == "\\pi":
            return complex(math.pi)
        if token == "i":
            return 1j
        if not (len(token) == 1 and token.isalpha()) and token not in GREEK:
            raise _UnknownError
        if self.next() == "_":
            start = self.place
            while self.take() != "}":
                pass
            token += "".join(self.tokens[start : self.place])
        self.letters.add(token)
        return complex(random.Random(f"{token} {self.point}").uniform(1.0, 3.0))

    def _starts_factor(self) -> bool:
        token = self.next()
        return token in ("(", "\\frac", "\\sqrt", "\\pi") or token in FUNCTIONS or token in GREEK or token.isalnum()

    def _is_mixed(self, first: int) -> bool:
        """Return whether a whole number from `first` on and a fraction of numbers follow each other: 1 1/2 is 3/2."""
        tokens = self.tokens[first : first + 8]
        shape = ["N" if token.isdigit() else token for token in tokens]
        return shape == ["N", "\\frac", "{", "N", "}", "{", "N", "}"] and self.place == first + 1


def _checked(value: Number) -> Number:
    if isinstance(value, Fraction) and max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise _UnknownError
    return value


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction):
        whole = exponent.denominator == 1
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if whole and bits * abs(exponent.numerator) <= MAX_BITS:
            return base**exponent.numerator
        if base < 0 and exponent.numerator == 1 and exponent.denominator % 2:  # the real root
            return -complex(float(-base) ** float(exponent))
    return complex(base) ** complex(exponent)


def _factorial(value: Number) -> Number:
    if not isinstance(value, Fraction) or value.denominator != 1 or not 0 <= value <= 300:
        raise _UnknownError
    return Fraction(math.factorial(value.numerator))
