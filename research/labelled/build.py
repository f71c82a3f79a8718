"""Build the labelled set: `python -m research.labelled.build` writes documents.jsonl.xz; `--check` only compares.

Each line of the file is a document with these fields:

    id, category, group   what the text is; a group contains related categories
    label                 "loop", "legitimate", "asked for" (repetition that somebody wanted) or "borderline"
    kind                  of loops: "tandem", "drift", "counter", "edited" or "left" (the text goes on after the loop)
    onset                 the character at which the loop begins, if known
    provenance            where the text comes from
    text
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from research.labelled import loops, program_text, prose, structured

HERE = Path(__file__).resolve().parent
DOCUMENTS = HERE / "documents.jsonl.xz"


def main() -> None:
    """Write the file, or compare it with the generators."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the file is not current")
    check = parser.parse_args().check
    fresh = "".join(json.dumps(document, ensure_ascii=False) + "\n" for document in documents())
    if check:
        with lzma.open(DOCUMENTS, "rt", encoding="utf-8") as file:
            sys.exit(0 if file.read() == fresh else f"{DOCUMENTS.name} is not what the generators write")
    DOCUMENTS.write_bytes(lzma.compress(fresh.encode(), preset=9))
    size = DOCUMENTS.stat().st_size
    print(f"{DOCUMENTS.name}: {fresh.count(chr(10))} documents, {len(fresh):,} characters, {size:,} bytes")


def read() -> list[dict[str, Any]]:
    """Return the documents of the committed file."""
    with lzma.open(DOCUMENTS, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def documents() -> Iterator[dict[str, Any]]:
    """Generate all documents, in the order of the file."""
    yield from generated()
    yield from _model_outputs()


def generated(first: int = 0) -> Iterator[dict[str, Any]]:
    """Generate the documents that are made from seeds.

    Args:
        first: the first seed of each category. 0 gives the labelled set; other values give new texts.
    """
    for module, table, label in (
        (structured, structured.CATEGORIES, "legitimate"),
        (program_text, program_text.CATEGORIES, "legitimate"),
        (prose, prose.CATEGORIES, "legitimate"),
        (prose, prose.INTENDED, "asked for"),
    ):
        for category, (group, write, count) in table.items():
            for number in range(first, first + count):
                text = write(_rng(category, number))
                source = _source(module, write)
                yield _document(category, number, group, label, None, None, source, text)
    for category, (kind, make, count) in loops.CATEGORIES.items():
        for number in range(first, first + count):
            text, onset = make(_rng(f"loop {category}", number))
            source = _source(loops, make)
            yield _document(f"{category} loop", number, "made loops", "loop", kind, onset, source, text)


def _model_outputs() -> Iterator[dict[str, Any]]:
    """Generate the outputs of the bundled model, with the labels that a person gave them."""
    labels = json.loads((HERE / "labels.json").read_text(encoding="utf-8"))
    with lzma.open(HERE / "model_outputs.jsonl.xz", "rt", encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            given = labels[row["id"]]
            group = {"loop": "model loops", "borderline": "model, borderline"}.get(given["label"], "model text")
            source = f"the bundled model, greedy, penalty {row['penalty']}, {row['asked']}; label by reading"
            category = "model problem" if "problem" in row["id"] else f"model, {row['penalty']}"
            yield {
                "id": row["id"], "category": category, "group": group, "label": given["label"],
                "kind": given.get("kind"), "onset": given.get("onset"), "provenance": source, "text": row["text"],
            }  # fmt: skip


def _source(module: ModuleType, function: Callable[..., Any]) -> str:
    """Return the provenance of a generated text. The module is named as it was when the set was made."""
    return f"generated: {module.__name__.removeprefix('research.')}.{function.__name__}"


def _rng(category: str, number: int) -> random.Random:
    return random.Random(f"lz-penalty labelled set: {category} {number}")


def _document(
    category: str, number: int, group: str, label: str, kind: str | None, onset: int | None, source: str, text: str
) -> dict[str, Any]:
    name = f"{category.lower().replace(' ', '-').replace(',', '')}-{number}"
    return {
        "id": name, "category": category, "group": group, "label": label, "kind": kind, "onset": onset,
        "provenance": source, "text": text,
    }  # fmt: skip


if __name__ == "__main__":
    main()
