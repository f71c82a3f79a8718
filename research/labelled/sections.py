"""Make model-like outputs with the section of every character: `python -m research.labelled.sections` counts them.

A section begins after the characters that open it: a marker, the third character of a fence, a pipe that begins a line,
or a bracket that begins a line with the first character inside it. It ends after the characters that close it: a marker,
the line end after a closing fence, or the last bracket. A table ends after the first character of a line that is neither
a blank nor a pipe. The labels follow from how the outputs are composed; no parser is involved.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import NamedTuple

from research.labelled.section_cases import CASES

Pieces = list[tuple[str, str]]

THINK = {
    "deepseek": ("<think>", "</think>"),
    "mistral": ("[THINK]", "[/THINK]"),
    "kimi": ("◁think▷", "◁/think▷"),
    "gpt-oss": ("<|channel|>analysis<|message|>", "<|end|>"),
    "cohere": ("<|START_THINKING|>", "<|END_THINKING|>"),
}
WORDS = """the result of this step is a small number which we add to what was there before and then compare with naïve
estimates from the café's ledger — it's fine, isn't it? (2 < 3, x|y, `inline`, "quoted", 50 %, a[0], {set}, 数学, 🙂)""".split()
CALLS = (
    {"name": "get_weather", "arguments": {"city": "Zürich", "days": 3}},
    {"name": "run", "arguments": {"code": "```python\nprint('<think>')\n```", "args": []}},
    {"name": "write_file", "arguments": {"path": "C:\\tmp\\a.md", "text": "| a | b |\n|---|---|\n\n~~~\nx\n~~~\n"}},
    {"name": "nest", "arguments": {"a": [[1, 2], [{"b": None}], "}]}"], "quote": 'say "hi"', "t": True}},
)
BODIES = {
    "python": 'def f(x):\n    """\n    ```\n    f(1)\n    ```\n    """\n    return {"a": [x, "`" * 3]}  # ```\n',
    "json": '{\n  "text": "```",\n  "rows": [1, 2, 3]\n}\n',
    "html": "<think>\n<tool_call>\n| not | a table |\n~~~\n``\n</tool_call>\n",
    "": "$ ls | wc\n| 3\n\n   `` ` ``\n```) no fence\n",
    "c++": "int a[] = {0, 0, 0, 0, 0, 0};\n\n\n#if 1\n`\n#endif\n",
    "markdown": "# A\n\n```sh\nmake\n```\n\n| a |\n|---|\n\n```python\nx\n```\ntext\n",
}


class Output(NamedTuple):
    """One output: a name, and its text as pieces with their sections."""

    kind: str
    pieces: Pieces

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(text for _, text in self.pieces)

    @property
    def sections(self) -> list[str]:
        """The section of every character."""
        return [section for section, text in self.pieces for _ in text]


def outputs() -> list[Output]:
    """Return all outputs. Every call returns equal ones."""
    rng = random.Random(9)
    made = [Output(f"case {i}: {name}", list(pieces)) for i, (name, pieces) in enumerate(CASES)]
    for style in THINK:
        for _ in range(6):
            pieces = thinking(rng, style)
            for _ in range(rng.randint(1, 4)):
                pieces += rng.choice((prose, fenced, table, bare_json, tool_call))(rng)
            made.append(Output(f"thinking of {style}", pieces))
    for part in (fenced, table, bare_json, tool_call):
        for _ in range(20):
            pieces = []
            for _ in range(rng.randint(1, 3)):
                pieces += prose(rng) + part(rng)
            made.append(Output(part.__name__, pieces + prose(rng)))
    for part in (fenced, tool_call, thinking):
        for _ in range(10):
            pieces = prose(rng) + part(rng)
            if pieces[-1][0] == "answer":
                pieces.pop()
            section, text = pieces[-1]
            end = rng.randrange(1, len(text))
            made.append(Output(f"unfinished {part.__name__}", [*pieces[:-1], (section, text[:end])]))
    return made


def sentence(rng: random.Random) -> str:
    """Return a line of words that opens no section."""
    return "So " + " ".join(rng.choice(WORDS) for _ in range(rng.randint(3, 15))) + "."


def prose(rng: random.Random) -> Pieces:
    """Return some lines of prose."""
    return [("answer", "\n".join(sentence(rng) for _ in range(rng.randint(1, 3))) + rng.choice(("\n", "\n\n", "\r\n")))]


def thinking(rng: random.Random, style: str = "deepseek") -> Pieces:
    """Return a thinking section. Everything inside it is thinking, except tool calls."""
    opening, closing = THINK[style]
    inside = "\n" + sentence(rng) + "\n" + rng.choice(("```python\nx = 1\n", "| a | b |\n", '{"a": "', "`", "")) + "\n"
    pieces: Pieces = [("answer", opening), ("thinking", inside)]
    if rng.random() < 0.3:
        call = tool_call(rng)
        pieces += [("thinking", call[0][1]), *call[1:-1], ("thinking", call[-1][1] + sentence(rng))]
    return [*pieces, ("thinking", closing), ("answer", rng.choice(("\n\n", "\n")))]


def fenced(rng: random.Random) -> Pieces:
    """Return a fenced block of code."""
    info = rng.choice(tuple(BODIES))
    body = BODIES[info]
    indent = rng.choice(("", "", "  ", "   "))
    fence = "~~~~" if info == "html" else "````" if rng.random() < 0.3 else "```"
    body = "".join(indent + line for line in body.splitlines(keepends=True))
    closing = rng.choice((fence, fence + fence[0], fence + "  "))
    return [("answer", indent + fence[:3]), ("code", f"{fence[3:]}{info}\n{body}{indent}{closing}\n")]


def table(rng: random.Random) -> Pieces:
    """Return table rows, followed by an empty line or a word."""
    columns = rng.randint(1, 4)
    rows = ["| " + " | ".join(rng.choice(WORDS) for _ in range(columns)) + " |" for _ in range(rng.randint(1, 6))]
    rows.insert(1, "|---" * columns + "|")
    indent = rng.choice(("", "  ", "> "))
    return [
        ("answer", indent + "|"),
        ("table", f"\n{indent}".join(rows)[1:] + rng.choice(("\n\n", "\n \n", "\nT"))),
        ("answer", "hen " + sentence(rng) + "\n"),
    ]


def bare_json(rng: random.Random) -> Pieces:
    """Return JSON that begins a line."""
    text = json.dumps(rng.choice(CALLS), ensure_ascii=rng.random() < 0.5, indent=rng.choice((None, 2)))
    if rng.random() < 0.3:
        text = f"[{text}, 1.5e-3]"
    first = 1 + len(text[1:]) - len(text[1:].lstrip()) + 1
    return [("answer", text[:first]), ("tool_call", text[first:]), ("answer", "\n")]


def tool_call(rng: random.Random) -> Pieces:
    """Return a tool call between the markers of a random model family."""
    call = rng.choice(CALLS)
    arguments = json.dumps(call["arguments"], ensure_ascii=False)
    opening, inside, closing = rng.choice(
        (
            ("<tool_call>", f"\n{json.dumps(call)}\n", "</tool_call>"),
            (
                "<tool_call>",
                f"\n<function={call['name']}>\n<parameter=a>\nisn't ```\n</parameter>\n</function>\n",
                "</tool_call>",
            ),
            ("<function=", f"{call['name']}>{arguments}", "</function>"),
            (
                "<｜tool▁calls▁begin｜>",  # noqa: RUF001
                f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{call['name']}\n```json\n{arguments}\n```<｜tool▁call▁end｜>",  # noqa: RUF001
                "<｜tool▁calls▁end｜>",  # noqa: RUF001
            ),
            ("<|channel|>commentary to=", f"functions.{call['name']}<|message|>{arguments}", "<|call|>"),
        )
    )
    return [("answer", opening), ("tool_call", inside + closing), ("answer", "\n")]


if __name__ == "__main__":
    all_of_them = outputs()
    characters = Counter(section for output in all_of_them for section in output.sections)
    print(
        f"{len(all_of_them)} outputs,", ", ".join(f"{n} characters of {name}" for name, n in characters.most_common())
    )
