"""Compare final answers that are written in LaTeX or in plain text: `same_answer`.

Lists, tuples, intervals and matrices are compared item by item, and everything else by its value. Nothing is ever
executed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from lz_penalty.evaluation._expressions import equal_values
from lz_penalty.evaluation._latex import Tokens, tokens_of

__all__ = ["same_answer"]

MAX_LENGTH = 500  # characters of an answer that is compared
MAX_DEPTH = 20  # levels of nested tuples
NAME = r"(?:\\?[A-Za-z]{1,8}|\"\w+\")(?:_\{\w+\})?(?:\(\w\))?"
OPENED = {"(": ")", "[": "]", "{": "}", "\\{": "\\}", "\\beginmatrix": "\\endmatrix"}
CLOSED = frozenset(OPENED.values())
CLOSED_BY_ANY = (")", "]")  # an interval may begin with ( and end with ]


def same_answer(given: str, expected: str) -> bool:
    """Return whether two final answers mean the same.

    - Numbers are equal as numbers: `0.5`, `.50`, `1/2` and `\\frac12`.
    - Units, degrees, `%`, `$` and the name before `=` do not count.
    - A list without brackets and a set have no order. Tuples, intervals and matrices have one.

    >>> same_answer(r"x = \\dfrac{3}{4}", "0.75"), same_answer(r"2 \\sqrt{3}", r"\\sqrt{12}"), same_answer("52_8", "52")
    (True, True, False)
    >>> same_answer("(1, 2)", r"\\left( 1,2 \\right)"), same_answer("3, -1", "-1, 3"), same_answer("(3,4]", "[3,4]")
    (True, True, False)
    """
    if given.strip() == expected.strip():
        return bool(given.strip())
    if max(len(given), len(expected)) > MAX_LENGTH:
        return False
    one, other = tokens_of(given), tokens_of(expected)
    return bool(one and other) and _same(one, other, 0)


def _same(one: Tokens, other: Tokens, depth: int) -> bool:
    one, other = _unwrapped(one), _unwrapped(other)
    if one == other or depth > MAX_DEPTH or not one or not other:
        return one == other != []
    for separator in (",", "\\cup"):
        lists = _items(one, separator), _items(other, separator)
        if max(map(len, lists)) > 1:
            return _same_items(*lists, depth)
    if any(token[0] == '"' for token in one + other):
        return _text(one) == _text(other)
    if one[0] == other[0] == "\\beginmatrix":
        return _same_rows(one, other, depth)
    if _is_tuple(one) and _is_tuple(other):
        return (one[0], one[-1]) == (other[0], other[-1]) and _in_order(
            _split(one[1:-1], ","), _split(other[1:-1], ","), depth
        )
    if "=" in one and "=" in other:
        return _in_order(_split(one, "="), _split(other, "="), depth)
    return equal_values(one, other)


def _text(tokens: Tokens) -> str:
    return "".join(tokens).replace('"', "").replace(" ", "").casefold()


def _unwrapped(tokens: Tokens) -> Tokens:
    """Drop what surrounds an answer: a name before `=`, the braces of a set, brackets around one item."""
    for sign in ("=", "\\in"):
        sides = _split(tokens, sign)
        if len(sides) > 1 and len(_split(tokens, ",")) == 1 and _is_name(sides[0], bare=sides[-1] == ["0"]):
            tokens = sides[-1]
    while len(tokens) > 2 and OPENED.get(tokens[0]) == tokens[-1] and _closes_at_end(tokens):
        if tokens[0] not in ("\\{", "{") and (tokens[0] != "(" or len(_split(tokens[1:-1], ",")) > 1):
            break
        tokens = tokens[1:-1]
    return tokens


def _is_name(side: Tokens, bare: bool) -> bool:
    """Return whether this is `x`, `f(2)`, `x_1` or `(x, y)`; unless it must be bare, also a sum such as `m + n`."""
    text = "".join(side)
    if re.fullmatch(rf"{NAME}|\({NAME}(?:,{NAME})*\)", text):
        return True
    return not bare and re.fullmatch(rf"{NAME}(?:[-+]{NAME})*", text) is not None


def _items(tokens: Tokens, separator: str) -> list[Tokens]:
    """Return the items of a list, with two items for one that has a plus-minus sign."""
    found = list[Tokens]()
    for item in _split(tokens, separator):
        if "\\pm" in item or "\\mp" in item:
            for signs in ({"\\pm": "+", "\\mp": "-"}, {"\\pm": "-", "\\mp": "+"}):
                found.append([signs.get(token, token) for token in item])
        else:
            found.append(item)
    return found


def _same_items(one: list[Tokens], other: list[Tokens], depth: int) -> bool:
    """Return whether two lists have the same items in any order."""
    if len(one) != len(other):
        return False
    left = list(other)
    for item in one:
        match = next((place for place, its in enumerate(left) if _same(item, its, depth + 1)), None)
        if match is None:
            return False
        del left[match]
    return True


def _in_order(one: list[Tokens], other: list[Tokens], depth: int) -> bool:
    return len(one) == len(other) and all(_same(*pair, depth + 1) for pair in zip(one, other))


def _same_rows(one: Tokens, other: Tokens, depth: int) -> bool:
    left, right = ([_split(row, "&") for row in _split(its[1:-1], "\\\\") if row] for its in (one, other))
    return len(left) == len(right) and all(_in_order(*rows, depth) for rows in zip(left, right))


def _is_tuple(tokens: Tokens) -> bool:
    return tokens[0] in ("(", "[") and tokens[-1] in CLOSED_BY_ANY and len(_split(tokens[1:-1], ",")) > 1


def _closes_at_end(tokens: Tokens) -> bool:
    """Return whether the first bracket is closed by the last token."""
    depth = 0
    for place, token in enumerate(tokens):
        depth += (token in OPENED) - (token in CLOSED)
        if not depth:
            return place == len(tokens) - 1
    return False


def _split(tokens: Sequence[str], separator: str) -> list[Tokens]:
    """Split at the separators that are in no bracket."""
    parts, depth = [Tokens()], 0
    for token in tokens:
        depth += (token in OPENED) - (token in CLOSED)
        if token == separator and not depth:
            parts.append(Tokens())
        else:
            parts[-1].append(token)
    return parts
