"""Split an answer that is written in LaTeX or in plain text into tokens, without what does not change its meaning."""

from __future__ import annotations

import re
from collections.abc import Callable

from lz_penalty.evaluation._expressions import is_number

__all__ = ["Tokens", "tokens_of"]

Tokens = list[str]

TOKEN = re.compile(r'"[^"]*"|\\[A-Za-z]+|\\.|\d+(?:\.\d+)?|\.\d+|[A-Za-z]{4,}|\S', re.DOTALL)
UNICODE = str.maketrans(
    {
        "\N{MINUS SIGN}": "-",
        "\N{EN DASH}": "-",
        "\N{MULTIPLICATION SIGN}": "*",
        "·": "*",
        "π": "\\pi ",
        "√": "\\sqrt ",
        "∞": "\\infty ",
        "°": "",
        "\N{UNION}": "\\cup ",
        "≤": "\\le ",
        "≥": "\\ge ",
        "±": "\\pm ",
        "²": "^2",
        "³": "^3",
        '"': "",
        "~": " ",
    }
)
SAME = {
    "\\dfrac": "\\frac",
    "\\tfrac": "\\frac",
    "\\cfrac": "\\frac",
    "\\leq": "\\le",
    "\\geq": "\\ge",
    "\\leqslant": "\\le",
    "\\geqslant": "\\ge",
    "\\neq": "\\ne",
    "\\cdot": "*",
    "\\times": "*",
    "\\div": "/",
    "\\lbrace": "\\{",
    "\\rbrace": "\\}",
    "\\lvert": "|",
    "\\rvert": "|",
    "\\vert": "|",
}
IGNORED = re.compile(
    r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle|q?quad|boxed|[,;:!()\[\]\s])|`"  # whole tokens
)
TEXT = re.compile(r"\\(text(?:bf|it|rm|normal)?|mbox|hbox|math(?:rm|bf|it|sf)|operatorname)\s*\{([^{}]*)\}")
UNITS = re.compile(
    r"(?<=[\d})\s])(?:(?:square|cubic|sq\.?)\s+)?(?:units?|[cmk]m|inch(?:es)?|feet|foot|ft|yards?|miles?|met(?:er|re)s?"
    r"|(?:centi|kilo|milli)met(?:er|re)s?|degrees?|radians?|dollars?|cents?|percent|hours?|minutes?|seconds?|days?|weeks?"
    r"|months?|years?|mph|grams?|kg|pounds?|gallons?|lit(?:er|re)s?|people|students|ways)(?:\^\{?[23]\}?)?$",
    re.IGNORECASE,
)
REWRITES: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (re.compile(r"\\?[$%]|\\degree(?![A-Za-z])|\^\s*(?:\\circ(?![A-Za-z])|\{\s*\\circ\s*\})"), ""),
    (re.compile(r"\\(begin|end)\s*\{[pb]?matrix\}"), lambda found: f" \\{found[1]}matrix "),
    (re.compile(r"(?<=\d)(?:,\\!\s*|\{,\}|\\[,;]|\\ )(?=\d{3}(?!\d))"), ""),  # thousands, as LaTeX separates them
    (re.compile(r"(\\[dtc]?frac)\s*(\d)\s+(\d)"), r"\1{\2}{\3}"),
    (re.compile(r"(?<=\d)\s+(\d+)\s*/\s*(\d+)"), r"\\frac{\1}{\2}"),  # 1 1/2
    (re.compile(r"(?<=\d)\s+(?=\d)"), ","),
    (re.compile(r"(?<![A-Za-z\\])(pi|sqrt)(?![A-Za-z])"), r"\\\1 "),
    (re.compile(r"\s(?:and|or)\s"), " , "),
)
THOUSANDS = re.compile(r'[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?(?=\s*(?:"|$))')


def tokens_of(text: str) -> Tokens:
    """Return the tokens of an answer: numbers, letters, commands and signs. Words are in quotes.

    >>> tokens_of(r"\\left( 3,\\ \\dfrac12 \\right)"), tokens_of(r"1,250 \\text{ cm}^2"), tokens_of(r"\\text{east}")
    (['(', '3', ',', '\\\\frac', '{', '1', '}', '{', '2', '}', ')'], ['1250'], ['"east"'])
    """
    text = text.translate(UNICODE)
    text = TEXT.sub(_plain, text)
    for pattern, new in REWRITES:
        text = pattern.sub(new, text)
    text = UNITS.sub("", text.lstrip(" \n*").rstrip(" \n.*")).strip()
    if found := THOUSANDS.match(text):
        text = found[0].replace(",", "") + text[found.end() :]
    tokens = [SAME.get(token, token) for token in TOKEN.findall(text)]
    return _with_braces(_without_units([_canonical(token) for token in tokens if not IGNORED.fullmatch(token)]))


def _plain(found: re.Match[str]) -> str:
    """Return the content of a command for upright text: a quoted word, or the content itself if it has no word."""
    command, content = found[1], found[2].strip()
    if command == "operatorname" and content.isalpha():
        return f"\\{content} "
    if content in ("and", "or", ","):
        return " , "
    is_text = command.startswith("text") or command.endswith("box")
    if re.search(r"[A-Za-z]{2}", content) or (is_text and content.isalpha()):
        return f' "{content}" '
    return f" {content} "


def _canonical(token: str) -> str:
    """Return a number without needless zeros, and a long word in quotes."""
    if is_number(token):
        whole, _, decimals = token.partition(".")
        decimals = decimals.rstrip("0")
        return (whole.lstrip("0") or "0") + (f".{decimals}" if decimals else "")
    return f'"{token}"' if token.isalpha() and len(token) > 1 else token


def _without_units(tokens: Tokens) -> Tokens:
    """Drop a quoted word after a value, with its exponent, and a full stop at the end."""
    kept, place = Tokens(), 0
    while place < len(tokens):
        token = tokens[place]
        place += 1
        if token[0] != '"' or not kept or kept[-1] in (",", "=", "(", "[", "\\{"):
            kept.append(token)
        elif tokens[place : place + 1] == ["^"]:
            place += 4 if tokens[place + 1 : place + 2] == ["{"] else 2
    while kept and kept[-1] in (".", ",", ";"):
        kept.pop()
    return kept


def _with_braces(tokens: Tokens) -> Tokens:
    """Put braces around each argument: `\\frac12` becomes `\\frac{1}{2}`, and `x^2` becomes `x^{2}`."""
    made, waiting = Tokens(), list(reversed(tokens))
    wanted = 0  # arguments that the last command still needs
    while waiting:
        token = waiting.pop()
        if wanted and token not in ("{", "[") and not (token == "(" and made[-1] in ("\\sqrt", "^")):
            if is_number(token) and len(token) > 1 and "\\frac" in made[-4:]:
                waiting.append(token[1:])
                token = token[0]
            minus = [token, waiting.pop()] if token == "-" and waiting else [token]
            made += ["{", *minus, "}"]
            wanted -= 1
            continue
        if wanted and token != "[":
            closing = "}" if token == "{" else ")"
            inside = _until(waiting, token, closing)
            made += ["{", *_with_braces(inside), "}"]
            wanted -= 1
            continue
        made.append(token)
        if token == "[" and wanted:  # the degree of a root
            made += [*_until(waiting, "[", "]"), "]"]
        else:
            wanted = {"\\frac": 2, "\\sqrt": 1, "^": 1, "_": 1}.get(token, 0)
    return made


def _until(waiting: Tokens, opening: str, closing: str) -> Tokens:
    """Take the tokens up to the bracket that closes the group, and that bracket; return those before it."""
    taken, depth = Tokens(), 1
    while waiting:
        token = waiting.pop()
        depth += (token == opening) - (token == closing)
        if not depth:
            break
        taken.append(token)
    return taken
