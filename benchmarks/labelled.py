"""Count the errors of each criterion on the labelled set: `python -m benchmarks.labelled` writes results/labelled.json.

The result contains no times, so that it is equal on every machine. `benchmarks.readme` writes it into docs/detection.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from rich.progress import track
from tokenizers import Tokenizer

from benchmarks.workload import arguments, write_json
from lz_penalty import bundled_model
from lz_penalty.detection import (
    find_counter,
    find_drift,
    find_edited,
    find_repetition,
    find_repetitions,
    is_degenerate,
    is_endless,
    is_loop,
    paper20,
    repeated_substrings,
)
from lz_penalty.detection._tandem import DEGENERATE_COPIES, STOP_LENGTH
from research.labelled import build

COPIES = (3, 5, 8, 12, 20)
LENGTHS = {"characters": (60, 120, 200, 240, 300, 400, 600), "tokens": (20, 40, 60, 80, 120, 240, 480, 960)}
FRESH = range(1_000, 9_000, 1_000)
IN_PAGE = ("tandem", "drift", "counter", "edited")  # in the table of docs/detection.md

TOKENIZER = Tokenizer.from_file(str(bundled_model.path() / "tokenizer.json"))


def decode(token: int) -> str:
    return TOKENIZER.decode([token], skip_special_tokens=False)


CRITERIA: dict[str, dict[str, Callable[[Any], Any]]] = {  # by the items of the sequence
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
    """Count and write the results."""
    path = arguments(__doc__, "labelled.json").out
    documents = build.read()
    rates, grid = [], []
    for items, criteria in CRITERIA.items():
        verdicts = []
        for document in track(documents, f"{items} ...", transient=True):
            text = document["text"]
            sequence = text if items == "characters" else TOKENIZER.encode(text).ids
            verdict = {name: bool(criterion(sequence)) for name, criterion in criteria.items()}
            verdict["any of " + ", ".join(IN_PAGE)] = any(verdict[name] for name in IN_PAGE)
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
    write_json(path, result)


def counts(criterion: str, documents: list[dict[str, Any]], flagged: list[bool]) -> Iterator[dict[str, Any]]:
    """Count texts and flagged texts per label, group and kind; for our own criteria, name flagged legitimate texts."""
    keys = [(document["label"], document["group"], document["kind"]) for document in documents]
    for key in dict.fromkeys(keys):
        chosen = [(document["id"], flag) for document, flag, own in zip(documents, flagged, keys) if own == key]
        hits = [name for name, flag in chosen if flag]
        row = {"criterion": criterion, **dict(zip(("label", "group", "kind"), key))}
        row |= {"texts": len(chosen), "flagged": len(hits)}
        yield row | ({"which": hits} if key[0] == "legitimate" and criterion in IN_PAGE else {})


def summary(documents: list[dict[str, Any]], flagged: list[bool]) -> dict[str, int]:
    """Count flagged legitimate texts, in all groups and in the strict groups, and found tandem loops."""
    found = Counter()
    for document, flag in zip(documents, flagged, strict=True):
        strict = document["group"] in ("tables", "code", "arithmetic", "JSON")
        found["strict"] += flag and strict
        found["legitimate"] += flag and document["label"] == "legitimate"
        found["tandem"] += flag and document["kind"] == "tandem"
    return dict(found)


def fresh() -> Iterator[dict[str, Any]]:
    """Count on new texts of the same generators, which no threshold was chosen on."""
    documents = [document for first in FRESH for document in build.generated(first)]
    for name in IN_PAGE:
        criterion = CRITERIA["characters"][name]
        flagged = [bool(criterion(document["text"])) for document in track(documents, f"{name} ...", transient=True)]
        yield from ({"items": "characters", **row} for row in counts(name, documents, flagged))


def examples(documents: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Find substrings that `paper20` flags in legitimate texts: one per category."""
    wanted = ["prose", "markdown table", "JSON objects", "switch", "reasoning", "log", "hex dump", "refrain"]
    for category in wanted:
        for document in documents:
            found = repeated_substrings(document["text"], limit=1) if document["category"] == category else []
            if found:
                yield {"id": document["id"], "substring": found[0].substring, "count": found[0].count}
                break


if __name__ == "__main__":
    main()
