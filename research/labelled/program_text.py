"""Seeded generators of legitimate repetition in code, arithmetic and mathematics. Each returns one text."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

WORDS = "open close read write seek flush lock unlock push pop send receive start stop pause resume".split()


def switch(rng: random.Random) -> str:
    """A switch statement whose cases count up; often they all have the same body."""
    same = rng.random() < 0.3
    lines = ["const char *name(int code) {", "    switch (code) {"]
    for code in range(rng.randint(8, 32)):
        body = 'return "unknown";' if same else f'return "{rng.choice(WORDS)}_{rng.choice(WORDS)}";'
        lines += [f"    case {code}:", f"        {body}"]
    return "\n".join([*lines, "    default:", "        return NULL;", "    }", "}"]) + "\n"


def matrix_initialiser(rng: random.Random) -> str:
    """Arrays in source code: zeros, identity, kernels, masks of booleans."""
    size, kind = rng.choice([4, 8, 12, 16, 24]), rng.randint(0, 3)
    cell: Callable[[int, int], str] = [
        lambda i, j: "0",
        lambda i, j: str(int(i == j)),
        lambda i, j: "0.0f" if (i + j) % 7 else "1.0f",
        lambda i, j: "false",
    ][kind]
    rows = [", ".join(cell(i, j) for j in range(size)) for i in range(size)]
    kinds = ["int", "int", "float", "bool"]
    body = ",\n".join(f"    {{{row}}}" for row in rows)
    return f"static {kinds[kind]} grid[{size}][{size}] = {{\n{body}\n}};\n\nint main(void) {{ return run(grid); }}\n"


def unrolled(rng: random.Random) -> str:
    """An unrolled loop. Each line has an index in several places; in assembly all lines are equal."""
    times, kind = rng.choice([8, 16, 32]), rng.randint(0, 3)
    line: Callable[[int], str] = [
        lambda i: f"    sum += a[{i}] * b[{i}];",
        lambda i: f"    out[{i}] = in[{i * 4}];",
        lambda i: f"    x{i} = f(x{i - 1});" if i else "    x0 = 1;",
        lambda i: "    add rax, rbx",
    ][kind]
    return "void step(void) {\n" + "\n".join(line(i) for i in range(times)) + "\n    done();\n}\n"


def padding(rng: random.Random) -> str:
    """Assembly with runs of nop or of zero bytes."""
    line = rng.choice(["    nop", "    .byte 0x00", "    .long 0", "    dw 0, 0, 0, 0"])
    times = rng.choice([8, 16, 32, 64])
    return (
        "start:\n    push rbp\n" + (line + "\n") * times + '    pop rbp\n    ret\n\n.section .data\nname: .asciz "x"\n'
    )


def html_list(rng: random.Random) -> str:
    """HTML lists and tables: equal tags around words, numbers or nothing."""
    kind, rows = rng.randint(0, 2), rng.randint(8, 40)
    if kind == 0:
        body = "\n".join(f"  <li>Item {i + 1}</li>" for i in range(rows))
    elif kind == 1:
        body = "\n".join(
            f'  <li class="entry"><a href="#{word}">{word}</a></li>' for word in rng.choices(WORDS, k=rows)
        )
    else:
        body = "\n".join("  <tr>" + "<td></td>" * rng.randint(4, 12) + "</tr>" for _ in range(rows))
    tag = ["ul", "ul", "table"][kind]
    return f"<{tag}>\n{body}\n</{tag}>\n"


def svg_path(rng: random.Random) -> str:
    """SVG paths: a zigzag repeats its relative commands."""
    if rng.random() < 0.5:
        steps = "l 5 5 l 5 -5 " * rng.randint(8, 40)
    else:
        steps = " ".join(f"L {rng.randint(0, 400)} {rng.randint(0, 400)}" for _ in range(60))
    return f'<svg viewBox="0 0 400 400">\n  <path d="M 0 0 {steps.strip()}" fill="none" stroke="black"/>\n</svg>\n'


def lookup(rng: random.Random) -> str:
    """A table of constants, eight per line; some contain mostly one value."""
    most = rng.choice(["0xff", "0x00", None])
    values = [
        most if most and rng.random() < 0.97 else f"0x{rng.randrange(256):02x}"
        for _ in range(rng.choice([64, 128, 256]))
    ]
    lines = [", ".join(map(str, values[i : i + 8])) + "," for i in range(0, len(values), 8)]
    return "const uint8_t table[] = {\n    " + "\n    ".join(lines) + "\n};\n"


def sql(rng: random.Random) -> str:
    """INSERT statements with a counting key and NULL in most columns."""
    rows = [
        f"INSERT INTO users VALUES ({i}, '{rng.choice(WORDS)}', NULL, NULL, 0, 0, NULL);"
        for i in range(1, rng.randint(12, 40))
    ]
    return "BEGIN;\n" + "\n".join(rows) + "\nCOMMIT;\n"


def indentation(rng: random.Random) -> str:
    """Deeply nested code: long indentation, then many closing braces."""
    depth = rng.randint(6, 22)
    opening = [" " * 4 * i + f"if ({rng.choice(WORDS)}_{i}()) {{" for i in range(depth)]
    closing = [" " * 4 * i + "}" for i in reversed(range(depth))]
    return "\n".join([*opening, " " * 4 * depth + "run();", *closing]) + "\n"


def unit_tests(rng: random.Random) -> str:
    """Test functions that differ in a name and a number."""
    parts = []
    for number, word in enumerate(rng.choices(WORDS, k=rng.randint(6, 14))):
        parts.append(
            f"def test_{word}_{number}():\n    client = Client()\n"
            f"    result = client.{word}({number})\n    assert result.ok\n"
        )
    return "import pytest\n\n\n" + "\n\n".join(parts)


def brackets(rng: random.Random) -> str:
    """Lisp: the last line ends in one bracket per level of nesting."""
    depth = rng.randint(6, 40)
    return "(define (f x)\n  " + "".join(f"(cons {i} " for i in range(depth)) + "'()" + ")" * depth + ")"


def long_division(rng: random.Random) -> str:
    """Long division, step by step; the digits are often periodic."""
    divisor, digits = rng.choice([7, 13, 17, 3, 9, 11, 37, 8]), rng.randint(12, 40)
    rest, lines, quotient = rng.randint(1, divisor - 1), [], ""
    lines.append(f"Divide {rest} by {divisor}.")
    for _ in range(digits):
        figure, new = divmod(rest * 10, divisor)
        lines.append(f"{rest}0 / {divisor} = {figure} remainder {new}.")
        quotient, rest = quotient + str(figure), new
    return "\n".join([*lines, f"The quotient is 0.{quotient}..."]) + "\n"


def repeating_decimal(rng: random.Random) -> str:
    """A periodic fraction with many digits, and a sentence that explains the period."""
    divisor, places = rng.choice([3, 7, 9, 11, 13, 37, 41, 101]), rng.choice([12, 20, 30, 50, 80])
    value = str(10**places // divisor).zfill(places)
    reason = f"The digits repeat because {divisor} has no factor 2 or 5."
    return f"To {places} decimal places, 1/{divisor} = 0.{value}. {reason}\n"


def times_table(rng: random.Random) -> str:
    """Multiplication tables, as lines or as a grid."""
    if rng.random() < 0.5:
        factor = rng.randint(2, 15)
        return "\n".join(f"{factor} x {i} = {factor * i}" for i in range(1, rng.choice([10, 12, 15, 20]) + 1)) + "\n"
    size = rng.randint(8, 14)
    return "\n".join("".join(f"{i * j:5}" for j in range(1, size + 1)) for i in range(1, size + 1)) + "\n"


def sums(rng: random.Random) -> str:
    """A running sum, one step per line, of an arithmetic series or of random numbers."""
    step, total, lines = rng.choice([0, 1, 2, 5]), 0, []
    for i in range(rng.randint(10, 30)):
        value = (i + 1) * step if step else rng.randint(1, 99)
        lines.append(f"{total} + {value} = {total + value}")
        total += value
    return "\n".join([*lines, f"So the sum is {total}."]) + "\n"


def powers(rng: random.Random) -> str:
    """Powers of a number, or a Collatz sequence down to 1."""
    if rng.random() < 0.5:
        base = rng.choice([2, 3, 10, 11])
        return "\n".join(f"{base}^{i} = {base**i}" for i in range(1, 40)) + "\n"
    number, steps = rng.choice([27, 97, 703, 871]), []
    while number != 1:
        even = number % 2 == 0
        following = number // 2 if even else 3 * number + 1
        steps.append(f"{number} is {'even' if even else 'odd'}, so next is {following}.")
        number = following
    return "\n".join([*steps, "We have reached 1."]) + "\n"


def big_number(rng: random.Random) -> str:
    """A large round number or a factorial, with all its zeros."""
    if rng.random() < 0.5:
        return f"A googol is 1{'0' * 100}. That is more than there are atoms in the universe, about 1{'0' * 80}.\n"
    number = rng.choice([50, 100, 150, 200])
    return f"{number}! = {math.factorial(number)}"


def matrix(rng: random.Random) -> str:
    """Matrices in plain text, LaTeX or Python: zero, identity, block, random."""
    size, kind = rng.choice([4, 6, 8, 10, 16]), rng.randint(0, 3)
    cell: Callable[[int, int], int] = [
        lambda i, j: 0,
        lambda i, j: int(i == j),
        lambda i, j: 1 + (i // 2 + j // 2) % 3,
        lambda i, j: rng.randint(-9, 9),
    ][kind]
    rows = [[str(cell(i, j)) for j in range(size)] for i in range(size)]
    style = rng.randint(0, 2)
    if style == 0:
        return "The matrix is\n\n" + "\n".join(" ".join(f"{value:>3}" for value in row) for row in rows) + "\n"
    if style == 1:
        body = " \\\\\n".join(" & ".join(row) for row in rows)
        return f"\\[ A = \\begin{{pmatrix}}\n{body}\n\\end{{pmatrix}} \\]\n"
    return "A = [" + ",\n     ".join("[" + ", ".join(row) + "]" for row in rows) + "]"


CATEGORIES: dict[str, tuple[str, Callable[[random.Random], str], int]] = {  # category: group, generator, how many
    "switch": ("code", switch, 8),
    "array initialiser": ("code", matrix_initialiser, 12),
    "unrolled loop": ("code", unrolled, 10),
    "padding": ("code", padding, 8),
    "HTML list": ("code", html_list, 10),
    "SVG path": ("code", svg_path, 6),
    "table of constants": ("code", lookup, 8),
    "SQL": ("code", sql, 6),
    "indentation": ("code", indentation, 8),
    "unit tests": ("code", unit_tests, 6),
    "brackets": ("code", brackets, 6),
    "long division": ("arithmetic", long_division, 10),
    "repeating decimal": ("arithmetic", repeating_decimal, 10),
    "multiplication table": ("arithmetic", times_table, 8),
    "sums": ("arithmetic", sums, 8),
    "powers": ("arithmetic", powers, 6),
    "large number": ("arithmetic", big_number, 6),
    "matrix": ("arithmetic", matrix, 12),
}
