"""Seeded generators of legitimate repetition in tables, CSV, JSON, logs and dumps. Each returns one text."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable

NAMES = "Ada Ben Cora Dan Eva Finn Gus Hana Ivo Jana Karl Lena Milo Nora Otto Pia Quin Rosa Sven Tess".split()
TOWNS = "Aarhus Basel Cork Delft Essen Faro Graz Hull Izmir Jena Kiel Lyon Metz Nice Oulu Porto Reims Siena".split()
THINGS = "bolt nut washer screw spring gear belt chain valve pump hose clamp gasket shaft bearing".split()


def markdown_table(rng: random.Random) -> str:
    """A Markdown table; some columns contain one word in every row, some are wide or empty."""
    columns, rows = rng.randint(3, 12), rng.randint(8, 40)
    same = rng.choice(["yes", "no", "-", "", "0", "n/a", "OK"])
    constant = rng.randint(0, columns - 1)
    head = "| " + " | ".join(rng.choice(THINGS) for _ in range(columns)) + " |"
    rule = "|" + "|".join(
        rng.choice(["---", ":---:", "-" * 12]) if rng.random() < 0.3 else "---" for _ in range(columns)
    )
    lines = [head, rule + "|"]
    for _ in range(rows):
        cells = [
            same if i < constant else rng.choice([*NAMES, *TOWNS, str(rng.randint(0, 999))]) for i in range(columns)
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return f"Here is the table.\n\n{chr(10).join(lines)}\n"


def empty_form(rng: random.Random) -> str:
    """An empty Markdown form: its rows are equal, or differ only in their first cell."""
    columns, rows = rng.randint(3, 7), rng.randint(6, 25)
    head = "| " + " | ".join(rng.sample(THINGS, columns)) + " |\n|" + "---|" * columns
    empty = "|" + "     |" * columns
    first = rng.random() < 0.5
    lines = [f"| {i + 1} |" + "     |" * (columns - 1) if first else empty for i in range(rows)]
    return f"A form that you can print:\n\n{head}\n{chr(10).join(lines)}\n\nPrint one page per week.\n"


def ascii_table(rng: random.Random) -> str:
    """A table with ASCII borders, which are periodic because all columns have one width; the last line is a border."""
    width, columns, rows = rng.randint(4, 18), rng.randint(3, 14), rng.randint(3, 25)
    rule = "+" + ("-" * (width + 2) + "+") * columns
    lines = [rule]
    for row in range(rows):
        cells = [rng.choice([*THINGS, *NAMES, "", "0", str(rng.randint(0, 9999))])[:width] for _ in range(columns)]
        lines.append("|" + "|".join(f" {cell:{rng.choice('<>') if row else '<'}{width}} " for cell in cells) + "|")
        if not row or rng.random() < 0.2:
            lines.append(rule)
    if lines[-1] != rule:
        lines.append(rule)
    return "\n".join(lines) + ("\n" if rng.random() < 0.5 else "")


def rst_table(rng: random.Random) -> str:
    """A table ruled with equals signs; the last line is a rule."""
    widths = [rng.randint(6, 30) for _ in range(rng.randint(2, 5))]
    rule = " ".join("=" * width for width in widths)
    lines = [rule, " ".join(f"{rng.choice(THINGS):{width}}" for width in widths).rstrip(), rule]
    for _ in range(rng.randint(5, 25)):
        lines.append(" ".join(f"{rng.choice([*NAMES, *TOWNS])[:width]:{width}}" for width in widths).rstrip())
    return "\n".join([*lines, rule]) + "\n"


def alignment(rng: random.Random) -> str:
    """A report aligned with spaces or dots."""
    width, fill = rng.randint(30, 90), rng.choice(" ...")
    lines = [f"{rng.choice(TOWNS)} {fill * (width - rng.randint(4, 9))} {rng.randint(1, 999):>4}" for _ in range(25)]
    return "Contents\n\n" + "\n".join(lines) + "\n"


def separators(rng: random.Random) -> str:
    """Sections divided by rules made of one or two characters; some texts end in a rule."""
    width = rng.choice([20, 40, 60, 72, 79, 80, 100, 120])
    rule = (rng.choice(["-", "=", "*", "#", "~", "-=", "* "]) * width)[:width]
    parts = []
    for number in range(rng.randint(3, 9)):
        name, town = rng.choice(NAMES), rng.choice(TOWNS)
        parts.append(
            f"{rule}\nSection {number + 1}: {town}\n{rule}\n"
            f"{name} reported {rng.randint(2, 90)} {rng.choice(THINGS)}s.\n"
        )
    return "\n".join(parts) + (rule if rng.random() < 0.5 else "")


def csv(rng: random.Random) -> str:
    """Comma-separated values: constant readings, varying readings, or sparse rows with empty fields."""
    columns = rng.randint(3, 12)
    sparse, constant = rng.random() < 0.4, rng.random() < 0.4
    lines = [",".join(["time", *rng.choices(THINGS, k=columns)])]
    for row in range(rng.randint(20, 60)):
        values = [
            "" if sparse and rng.random() < 0.8 else "0.0" if constant else f"{rng.gauss(20, 5):.1f}"
            for _ in range(columns)
        ]
        lines.append(",".join([f"2024-03-01T{row // 60:02}:{row % 60:02}:00", *values]))
    return "\n".join(lines) + "\n"


def json_numbers(rng: random.Random) -> str:
    """Arrays of numbers: zeros, one value, two values, counting, or random."""
    kind, size = rng.randint(0, 4), rng.choice([16, 32, 64, 100, 128, 256, 400])
    values = {
        0: [0] * size,
        1: [rng.choice([1, -1, 255, 0.5, 1e-3])] * size,
        2: rng.choices([0, 1], [9, 1], k=size),
        3: list(range(size)),
        4: [round(rng.random(), 4) for _ in range(size)],
    }[kind]
    data = {"name": rng.choice(THINGS), "shape": [size], "values": values, "unit": "mm"}
    return json.dumps(data, indent=rng.choice([None, None, 2]))


def json_objects(rng: random.Random) -> str:
    """Arrays of objects with counting ids and similar defaults; sometimes all objects are equal."""
    same = rng.random() < 0.4
    fields = rng.sample(THINGS, rng.randint(2, 6))
    rows = []
    for number in range(rng.randint(10, 40)):
        row = {field: rng.choice([0, None, True, "", []]) if not same else None for field in fields}
        rows.append(row if same else {"id": number, "name": rng.choice(NAMES), **row})
    return json.dumps({"items": rows, "next": None}, indent=rng.choice([None, 2, 4]))


def json_nested(rng: random.Random) -> str:
    """Deep nesting: long indentation, and many closing brackets at the end."""
    data: object = rng.randint(0, 9)
    for depth in range(rng.randint(12, 40)):
        data = {rng.choice(THINGS): data} if depth % 2 else [data, rng.randint(0, 9)]
    return json.dumps(data, indent=rng.choice([2, 4]))


def geojson(rng: random.Random) -> str:
    """A polygon's coordinates; some are on a grid, the others random."""
    step = rng.choice([0.5, 1.0])
    points = [[10 + i * step, 50.0] for i in range(30)] if rng.random() < 0.3 else []
    points += [[round(rng.uniform(5, 15), 5), round(rng.uniform(47, 55), 5)] for _ in range(40)]
    shape = {"type": "Polygon", "coordinates": [points]}
    return json.dumps({"type": "Feature", "geometry": shape, "properties": {"name": rng.choice(TOWNS)}})


def yaml_list(rng: random.Random) -> str:
    """A deployment's settings: items that differ only in their name."""
    lines = ["services:"]
    for name in rng.sample(THINGS, rng.randint(8, 15)):
        lines += [f"  - name: {name}", f"    image: registry/{name}:latest", "    restart: always", "    replicas: 1"]
    return "\n".join(lines) + "\n"


def log(rng: random.Random) -> str:
    """Service logs with time stamps; most messages are equal."""
    second, lines = rng.randint(0, 9999), []
    for _ in range(rng.randint(25, 70)):
        second += rng.choice([1, 1, 1, 2, 5])
        clock = f"{second // 3600 % 24:02}:{second // 60 % 60:02}:{second % 60:02}.{rng.randint(0, 999):03}"
        stamp = f"2024-05-{second // 86400 + 1:02} {clock}"
        words = rng.choices(
            ["GET /health 200", "retrying connection", f"user {rng.choice(NAMES)} logged in"], [8, 2, 1]
        )[0]
        lines.append(f"{stamp} INFO [worker-{rng.randint(1, 4)}] {words}")
    return "\n".join(lines) + "\n"


def bare_log(rng: random.Random) -> str:
    """Tool output without time stamps: one line many times, then the result."""
    line = rng.choice(
        ["Waiting for server...", "Connection refused, retrying in 5 s", "ok", "warning: deprecated call", "."]
    )
    times = rng.choice([5, 10, 20, 40, 60])
    separator = "" if line == "." else "\n"
    return f"$ make deploy\nbuilding\n{(line + separator) * times}\nserver is up after {times * 5} s\ndone\n"


def test_report(rng: random.Random) -> str:
    """A test runner's report: dots and percentages, or "ok" on every line."""
    if rng.random() < 0.5:
        rows = [
            f"tests/test_{name}.py {'.' * rng.randint(3, 70)}  [{(i + 1) * 6:>3}%]" for i, name in enumerate(THINGS)
        ]
        return (
            "\n".join(["=" * 30 + " test session starts " + "=" * 29, *rows, "=" * 32 + " 512 passed " + "=" * 36])
            + "\n"
        )
    rows = [f"test_{rng.choice(THINGS)}_{rng.choice(THINGS)} ... ok" for _ in range(50)]
    return "\n".join([*rows, "", "-" * 70, "Ran 50 tests in 1.204s", "", "OK"]) + "\n"


def progress(rng: random.Random) -> str:
    """Progress bars in a file: each line differs from the line before in a few characters."""
    total = rng.randint(12, 40)
    lines = [
        f"epoch {i:>3}/{total} [{'#' * i}{'.' * (total - i)}] loss {4 / (i + 1) + rng.random() / 10:.4f}"
        for i in range(1, total + 1)
    ]
    return "\n".join(lines) + "\nfinished\n"


def base64_text(rng: random.Random) -> str:
    """A file in base64; zero bytes give a run of A."""
    data = rng.randbytes(rng.randint(300, 1200)) + bytes(rng.choice([0, 0, 64, 200])) + rng.randbytes(40)
    text = base64.b64encode(data).decode()
    return (
        "data:application/octet-stream;base64,\n" + "\n".join(text[i : i + 76] for i in range(0, len(text), 76)) + "\n"
    )


def hex_dump(rng: random.Random) -> str:
    """Output of `xxd`: counting addresses, and some lines of zeros or ff."""
    data = b"".join(
        rng.choice([rng.randbytes(16), bytes(16), bytes(16), b"\xff" * 16]) for _ in range(rng.randint(15, 40))
    )
    lines = []
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{at:08x}: {' '.join(row[i : i + 2].hex() for i in range(0, 16, 2))}  {text}")
    return "\n".join(lines) + "\n"


CATEGORIES: dict[str, tuple[str, Callable[[random.Random], str], int]] = {  # category: group, generator, how many
    "markdown table": ("tables", markdown_table, 14),
    "empty form": ("tables", empty_form, 8),
    "ASCII table": ("tables", ascii_table, 14),
    "ruled table": ("tables", rst_table, 8),
    "CSV": ("tables", csv, 10),
    "aligned report": ("layout", alignment, 8),
    "separators": ("layout", separators, 10),
    "JSON numbers": ("JSON", json_numbers, 14),
    "JSON objects": ("JSON", json_objects, 12),
    "JSON nested": ("JSON", json_nested, 6),
    "GeoJSON": ("JSON", geojson, 6),
    "YAML": ("JSON", yaml_list, 4),
    "log": ("logs", log, 8),
    "log without times": ("logs", bare_log, 8),
    "test report": ("logs", test_report, 8),
    "progress bars": ("logs", progress, 6),
    "base64": ("dumps", base64_text, 8),
    "hex dump": ("dumps", hex_dump, 8),
}
