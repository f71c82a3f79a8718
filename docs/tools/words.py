"""Find words that our prose does not use: `python -m docs.tools.words`, which `make check` runs.

These words have a plain replacement, or a reader has to read the sentence twice. Each exception has a reason.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INSTEAD = {  # a pattern, and what to write instead
    r"\bbehind\b": "after",
    r"\b(?:stands?|stood|standing)\b": "is, or contains",
    r"\b(?:lies?|lay|lying)\b": "is, or contains",
    r"\bby rights?\b": "legitimately",
    r"\bto the bit\b": "exactly equal, or bit-identical",
    r'^\s*[rf]?"""The same\b': "Return ..., Store ..., A request that ...: a docstring says first what the thing does or is",
}
ALLOWED = {  # a file, a part of the line, and why
    ("docs/tools/words.py", ""): "this list",
    ("src/lz_penalty/bundled_model/_arithmetic.py", "lies between"): "texts that the bundled model was trained on",
    ("src/lz_penalty/bundled_model/_logic.py", "Cups stand at"): "texts that the bundled model was trained on",
    ("tests/detection/test_substrings.py", "stood the"): "a text for the detector",
    ("benchmarks/explorer.py", "That lay in the house"): "a nursery rhyme",
    ("research/labelled/prose.py", "lay in"): "a nursery rhyme",
}
WRITTEN = {".md", ".py", ".toml", ".h", ".c", ".cpp", ".js", ".css", ".html", ".yml", ".yaml", ".cff", ".patch", ""}
NOT_OURS = ("tests/data/", "LICENSE")


def found_in(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield line number, word and replacement for each word of the list.

    >>> list(found_in("The state\\nbehind these bytes."))
    [(2, 'behind', 'after')]
    """
    for number, line in enumerate(text.splitlines(), 1):
        for pattern, instead in INSTEAD.items():
            for match in re.finditer(pattern, line, re.IGNORECASE):
                yield number, match[0].strip(), instead


def is_allowed(name: str, line: str) -> bool:
    """Return whether the allow-list names this line.

    >>> is_allowed("tests/detection/test_substrings.py", 'f"Near the {a} stood the {b}"')
    True
    """
    return any(name == file and part in line for file, part in ALLOWED)


def main() -> None:
    """Print each place, and fail if there is one."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    places = []
    for name in listed.splitlines():
        path = ROOT / name
        if path.suffix not in WRITTEN or name.startswith(NOT_OURS) or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for number, word, instead in found_in(text):
            if not is_allowed(name, lines[number - 1]):
                places.append(f"{name}:{number}: {word!r}: write {instead}")
    if places:
        sys.exit(
            "\n".join([*places, "If a word is right there, add it to ALLOWED in docs/tools/words.py, with the reason."])
        )


if __name__ == "__main__":
    main()
