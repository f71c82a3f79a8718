"""Read the prompts and texts to measure on: those of the package, or files of one's own.

A file contains JSON lines. A file of prompts whose name ends in `.txt` contains one prompt per line instead.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from lz_penalty import bundled_model
from lz_penalty._files import read_text
from lz_penalty.errors import LZPenaltyError, bad_value, show
from lz_penalty.evaluation.texts import KINDS, Text, texts

__all__ = ["Prompt", "Prompts", "Texts", "read_prompts", "read_texts"]

MAX_FILE = 64 * 2**20  # bytes
MAX_LINES = 20_000  # prompts or texts
MAX_CHARACTERS = 1_000_000  # of a prompt or text
MAX_NAME = 100  # characters of an id or a kind
BUNDLED_PROMPTS = 256
OWN = "own"  # the kind of own texts without one


class Prompt(NamedTuple):
    """A prompt, and the id that errors name it by."""

    id: str
    text: str


class Prompts(NamedTuple):
    """Prompts, and where they come from: `bundled`, or the name and the sum of a file."""

    items: list[Prompt]
    source: str


class Texts(NamedTuple):
    """Texts, and where they come from."""

    items: list[Text]
    source: str


def read_prompts(given: str) -> Prompts:
    """Return the prompts for `--prompts`: the first so many of the bundled ones, or those of a file.

    A JSON line is an object with `prompt` and optionally `id`; other fields are ignored.
    """
    if given.isdecimal():
        count = _count("--prompts", given, BUNDLED_PROMPTS)
        return Prompts([Prompt(str(i), text) for i, text in enumerate(bundled_model.prompts()[:count])], "bundled")
    content, source = _content("--prompts", given)
    items: dict[str, Prompt] = {}
    lines = _plain(content) if Path(given).suffix == ".txt" else _objects(given, content, "prompt", "id")
    for number, prompt, name in lines:
        name = str(number) if name is None else name
        if name in items:
            raise LZPenaltyError(
                f"{given}, line {number}: the id {show(name)} occurs twice; give each prompt its own id."
            )
        items[name] = Prompt(name, _checked(given, number, "prompt", prompt))
    return Prompts(_some("--prompts", given, list(items.values())), source)


def read_texts(given: str, part: str = "all") -> Texts:
    """Return the texts for `--texts`: `all` of the package's, so many of each kind, or those of a file.

    A JSON line is an object with `text` and optionally `kind`; other fields are ignored. `part` is a half of the package's
    texts: `choose` or `publish`.
    """
    if given == "all" or given.isdecimal():
        found = {kind: texts(kind, part) for kind in KINDS}
        most = max(map(len, found.values()))
        count = most if given == "all" else _count("--texts", given, most)
        return Texts([text for kind in KINDS for text in found[kind][:count]], f"bundled, {part}")
    if part != "all":
        raise LZPenaltyError(f"--part {part}: only the package's own texts have parts; leave it out with a file.")
    content, source = _content("--texts", given)
    items = []
    for number, text, kind in _objects(given, content, "text", "kind"):
        items.append(Text(f"line {number}", kind or OWN, given, "", "", _checked(given, number, "text", text)))
    return Texts(_some("--texts", given, items), source)


def _count(option: str, given: str, most: int) -> int:
    if len(given) > 9 or not 1 <= int(given) <= most:
        raise bad_value(option, given, f"a number from 1 to {most}, or a file")
    return int(given)


def _content(option: str, path: str) -> tuple[str, str]:
    """Return the file's text, and its name with its sum, by which results know which file they were made with."""
    try:
        content = read_text(Path(path), MAX_FILE)
    except (OSError, UnicodeDecodeError) as error:
        raise LZPenaltyError(f"{option} {path}: cannot be read as UTF-8 text ({error}).") from None
    return content, f"{Path(path).name}, sha256 {hashlib.sha256(content.encode()).hexdigest()}"


def _plain(content: str) -> Iterator[tuple[int, Any, None]]:
    for number, line in enumerate(content.split("\n"), 1):
        if line.strip():
            yield number, line.removesuffix("\r"), None


def _objects(path: str, content: str, needed: str, optional: str) -> Iterator[tuple[int, Any, str | None]]:
    """Yield the number of each line with its two fields; raise an error for a line that is not such an object."""
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise LZPenaltyError(f"{path}, line {number}: not JSON ({error}); give one object per line.") from None
        if not isinstance(data, dict) or needed not in data:
            raise LZPenaltyError(
                f"{path}, line {number}: must be an object with the field {needed!r}; got {show(data)}."
            )
        name = data.get(optional)
        if isinstance(name, int) and not isinstance(name, bool):
            name = str(name) if name.bit_length() < 64 else name
        if name is not None and not (isinstance(name, str) and 0 < len(name) <= MAX_NAME):
            allowed = f"a text of 1 to {MAX_NAME} characters"
            raise bad_value(f"{path}, line {number}: {optional}", name, allowed)
        yield number, data[needed], name


def _checked(path: str, number: int, field: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_CHARACTERS:
        raise bad_value(f"{path}, line {number}: {field}", value, f"a text of 1 to {MAX_CHARACTERS:,} characters")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise LZPenaltyError(f"{path}, line {number}: {field} contains half of a surrogate pair; remove it.") from None
    return value


def _some(option: str, path: str, items: list[Any]) -> list[Any]:
    if not 1 <= len(items) <= MAX_LINES:
        raise LZPenaltyError(f"{option} {path}: contains {len(items):,}; must be 1 to {MAX_LINES:,}.")
    return items
