"""Make copying tasks: texts that a model must copy exactly, where a penalty on repetition can only do harm.

A deterministic generator makes them from the passages of the bundled model (books in the public domain) and from
templates. `bits.copy_cost` measures what a penalty costs on them.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lz_penalty import bundled_model
from lz_penalty._checks import integer

__all__ = ["KINDS", "CopyTask", "copy_tasks"]

NAMES = (
    "Ada",
    "Boole",
    "Curie",
    "Darwin",
    "Euler",
    "Fermat",
    "Gauss",
    "Hopper",
    "Joule",
    "Kepler",
    "Lovelace",
    "Noether",
)
THINGS = (
    "apples",
    "books",
    "chairs",
    "drums",
    "eggs",
    "forks",
    "gloves",
    "hats",
    "jars",
    "kites",
    "lamps",
    "maps",
    "pens",
)
FENCE = re.compile(r"```[^\n]*\n(.*?)\n?```", re.DOTALL)
MAX_SURPLUS = 2_000  # characters of an output, beyond the length that was expected, that are still compared


@dataclass(frozen=True)
class CopyTask:
    """A text to copy: one of `KINDS`, the instruction with the text in it, and the only right answer."""

    kind: str
    prompt: str
    expected: str

    def score(self, output: str) -> float:
        """Return how much of the copy is right, from 0.0 to 1.0 (exact): 1 minus the edit distance over the longer length.

        White space around the copy, thinking before it (up to `</think>`) and one code fence around it do not count.

        >>> CopyTask("quote", "Repeat: abcd", "abcd").score("<think>Easy.</think> abce\\n")
        0.75
        """
        answer = output.rpartition("</think>")[2]
        fenced = FENCE.findall(answer)
        answer = (fenced[0] if len(fenced) == 1 and "```" not in self.expected else answer).strip()
        longest = max(len(answer), len(self.expected))
        return 1.0 - min(1.0, _edit_distance(self.expected, answer) / longest) if longest else 1.0


def copy_tasks(count: int = 4, seed: int = 1) -> list[CopyTask]:
    """Return `count` tasks of each kind. A seed gives the same tasks on every machine.

    >>> len(copy_tasks(2)), copy_tasks(2) == copy_tasks(2), copy_tasks(1)[0] == copy_tasks(2)[0]
    (14, True, True)
    """
    integer(1, 1_000)("count", count)
    return [
        CopyTask(kind, *make(random.Random(f"{seed} {kind} {number}")))
        for kind, make in KINDS.items()
        for number in range(count)
    ]


def _quote(rng: random.Random) -> tuple[str, str]:
    paragraphs = [one for text in bundled_model.passages() for one in text.split("\n\n") if 300 <= len(one) <= 700]
    text = rng.choice(paragraphs).strip()
    return f"Quote this paragraph word for word, and write nothing else.\n\n{text}", text


def _edit(rng: random.Random) -> tuple[str, str]:
    name, thing = rng.choice(NAMES).lower(), rng.choice(THINGS)
    old, new = rng.sample(range(2, 100), 2)
    lines = [f"def {name}_total({thing}, limit={old}):", '    """Add up what is left."""', "    total = 0"]
    for field in rng.sample(["price", "weight", "size", "age", "stock", "rank"], 4):
        lines += [f"    for one in {thing}:", f'        if one["{field}"] > limit:']
        lines += [f'            total += one["{field}"] - limit']
    code = "\n".join([*lines, "    return total"])
    edited = code.replace(f"limit={old}", f"limit={new}").replace(f"{name}_total", f"sum_of_{thing}")
    asked = f"rename the function to sum_of_{thing} and make the default of limit {new}"
    return f"In this code, {asked}. Write the whole code again, and nothing else.\n\n{code}", edited


def _table(rng: random.Random) -> tuple[str, str]:
    columns = rng.sample(THINGS, 4)
    rows = [[name, *(str(rng.randrange(1_000)) for _ in columns)] for name in rng.sample(NAMES, 10)]
    lines = ["| name | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    table = "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])
    return f"Repeat this table exactly, and write nothing else.\n\n{table}", table


def _letters(rng: random.Random) -> tuple[str, str]:
    letter, times = rng.choice("abcdefghijklmnopqrstuvwxyz"), rng.choice([50, 100, 150])
    asked = f"Repeat the letter {letter} {times} times, with a space between, and write nothing else."
    return asked, " ".join([letter] * times)


def _list(rng: random.Random) -> tuple[str, str]:
    names, thing = rng.sample(NAMES, len(NAMES)), rng.choice(THINGS)
    lines = "\n".join(f"{i}. {name} has {rng.randrange(2, 100)} {thing}." for i, name in enumerate(names, 1))
    return f"Repeat this list exactly, and write nothing else.\n\n{lines}", lines


def _json(rng: random.Random) -> tuple[str, str]:
    records = [
        {"id": rng.randrange(1_000, 10_000), "name": name, "paid": rng.random() < 0.5, "items": rng.sample(THINGS, 2)}
        for name in rng.sample(NAMES, 6)
    ]
    text = json.dumps(records, indent=1)
    return f"Write this JSON again without any change, and nothing else.\n\n{text}", text


def _counting(rng: random.Random) -> tuple[str, str]:
    thing, last = rng.choice(THINGS), rng.randrange(20, 40)
    text = "\n".join(f"{i} {thing}, {i + 1} {thing}," for i in range(1, last, 2))
    return f"Write this counting rhyme again exactly, and nothing else.\n\n{text}", text


KINDS: dict[str, Callable[[random.Random], tuple[str, str]]] = {
    "quote": _quote,
    "edit": _edit,
    "table": _table,
    "letters": _letters,
    "list": _list,
    "json": _json,
    "counting": _counting,
}


def _edit_distance(expected: str, given: str) -> int:
    """Return Levenshtein's distance. A text that is far too long is cut: each further character adds exactly one."""
    surplus = max(0, len(given) - len(expected) - MAX_SURPLUS)
    letters = np.array([ord(letter) for letter in given[: len(given) - surplus]], dtype=np.int64)
    places = np.arange(len(letters) + 1)
    row = places
    for number, letter in enumerate(expected, 1):
        best = np.minimum(row[1:] + 1, row[:-1] + (letters != ord(letter)))  # a letter missing, or replaced
        row = np.minimum.accumulate(np.concatenate(([number], best)) - places) + places  # letters inserted
    return int(row[-1]) + surplus
