"""How often each criterion is wrong on the labelled set: `python -m benchmarks.labelled` writes results/labelled.json.

Counts only, no times: the same on every machine. benchmarks/readme.py writes them into docs/detection.md.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from rich.progress import track
from tokenizers import Tokenizer

from benchmarks.workload import RESULTS
from lz_penalty import bundled_model
from lz_penalty.detection._drift import find_drift
from lz_penalty.detection._substrings import paper20, repeated_substrings
from lz_penalty.detection._tandem import (
    DEGENERATE_COPIES,
    STOP_LENGTH,
    find_repetition,
    find_repetitions,
    is_degenerate,
    is_endless,
    is_loop,
)
from lz_penalty.detection._tolerant import find_counter, find_edited
from research.labelled import build

COPIES = (3, 5, 8, 12, 20)
LENGTHS = {"characters": (60, 120, 200, 240, 300, 400, 600), "tokens": (20, 40, 60, 80, 120, 240, 480, 960)}
FRESH = range(1_000, 9_000, 1_000)
FORGIVING = ("tandem", "drift", "counter", "edited")

TOKENIZER = Tokenizer.from_file(str(bundled_model.path() / "tokenizer.json"))


def decode(token: int) -> str:
    return TOKENIZER.decode([token], skip_special_tokens=False)


CRITERIA: dict[str, dict[str, Callable[[Any], Any]]] = {  # by what the sequence consists of
    "characters": {
        "tandem": is_endless,
        "drift": find_drift,
        "counter": find_counter,
        "edited": find_edited,
        "paper20": paper20,
    },
    "tokens": {
        "tandem": is_endless,
        "drift": find_drift,
        "counter": lambda tokens: find_counter(tokens, decode=decode),
        "edited": lambda tokens: find_edited(tokens, decode=decode),
        "5 copies, 60 tokens, anywhere": is_loop,
        "20 copies, anywhere": is_degenerate,
        "stopping: 20 copies, 480 tokens": lambda tokens: find_repetition(
            tokens, min_copies=DEGENERATE_COPIES, min_length=STOP_LENGTH
        ),
    },
}


def main() -> None:
    documents = build.read()
    rates, grid = [], []
    for items, criteria in CRITERIA.items():
        verdicts = []
        for document in track(documents, f"{items} ...", transient=True):
            text = document["text"]
            sequence = text if items == "characters" else TOKENIZER.encode(text).ids
            verdict = {name: bool(criterion(sequence)) for name, criterion in criteria.items()}
            verdict["any of " + ", ".join(FORGIVING)] = any(verdict[name] for name in FORGIVING)
            runs = [
                (run.copies, run.length, run.start + run.length == len(sequence))
                for run in find_repetitions(sequence, min_copies=min(COPIES), min_length=min(LENGTHS[items]))
            ]
            verdict |= {
                (copies, length, at_end): any(c >= copies and n >= length and (end or not at_end) for c, n, end in runs)
                for copies in COPIES
                for length in LENGTHS[items]
                for at_end in (False, True)
            }
            verdicts.append(verdict)
        for name in verdicts[0]:
            flagged = [verdict[name] for verdict in verdicts]
            if isinstance(name, str):
                rates += [{"items": items, **row} for row in counts(name, documents, flagged)]
            else:
                limits = dict(zip(("min_copies", "min_length", "at_end"), name, strict=True))
                grid.append({"items": items, **limits, **summary(documents, flagged)})
    result = {
        "documents": len(documents),
        "labels": Counter(document["label"] for document in documents),
        "rates": rates,
        "grid": grid,
        "paper20": list(examples(documents)),
        "fresh": list(fresh()),
    }
    (RESULTS / "labelled.json").write_text(json.dumps(result, indent=1) + "\n")


def counts(criterion: str, documents: list[dict[str, Any]], flagged: list[bool]) -> Iterator[dict[str, Any]]:
    """Per label, group and kind: how many texts, how many flagged; of our own criteria, which legitimate ones."""
    keys = [(document["label"], document["group"], document["kind"]) for document in documents]
    for key in dict.fromkeys(keys):
        chosen = [(document["id"], flag) for document, flag, own in zip(documents, flagged, keys) if own == key]
        hits = [name for name, flag in chosen if flag]
        row = {"criterion": criterion, **dict(zip(("label", "group", "kind"), key))}
        row |= {"texts": len(chosen), "flagged": len(hits)}
        yield row | ({"which": hits} if key[0] == "legitimate" and criterion in FORGIVING else {})


def summary(documents: list[dict[str, Any]], flagged: list[bool]) -> dict[str, int]:
    """Legitimate texts flagged, in all and of the groups that must have none; tandem loops found."""
    found = Counter()
    for document, flag in zip(documents, flagged, strict=True):
        strict = document["group"] in ("tables", "code", "arithmetic", "JSON")
        found["strict"] += flag and strict
        found["legitimate"] += flag and document["label"] == "legitimate"
        found["tandem"] += flag and document["kind"] == "tandem"
    return dict(found)


def fresh() -> Iterator[dict[str, Any]]:
    """The same generators with other numbers: texts that no threshold was chosen on."""
    documents = [document for first in FRESH for document in build.generated(first)]
    for name in FORGIVING:
        criterion = CRITERIA["characters"][name]
        flagged = [bool(criterion(document["text"])) for document in track(documents, f"{name} ...", transient=True)]
        yield from ({"items": "characters", **row} for row in counts(name, documents, flagged))


def examples(documents: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """What `paper20` flags among legitimate texts: the first of each of several categories."""
    wanted = ["prose", "markdown table", "JSON objects", "switch", "reasoning", "log", "hex dump", "refrain"]
    for category in wanted:
        for document in documents:
            found = repeated_substrings(document["text"], limit=1) if document["category"] == category else []
            if found:
                yield {"id": document["id"], "substring": found[0].substring, "count": found[0].count}
                break


if __name__ == "__main__":
    main()
