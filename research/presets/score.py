"""Score the answers that `measure` kept, and drop their texts: `python -m research.presets.score FILES --data ... --out ...`.

FILES are results of `measure` with texts. A file's prompts decide how it is scored: `math500`, `aime` and `gpqa` by the final
answer, `humaneval` by running the program in a sandbox, `copies` and `letters` by the likeness to the text that was asked for.
FOLDER of `--data` contains the questions with their answers (`math500.jsonl.xz`, `aime24.jsonl.xz`, `gpqa_diamond.jsonl.xz`,
`humaneval.jsonl.gz`). Files with other prompts only lose their texts.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lz_penalty.evaluation.copying import copy_tasks
from lz_penalty.evaluation.sandbox import passes, program_of
from lz_penalty.evaluation.scoring import is_right
from lz_penalty.evaluation.study._offline.files import read_lines, read_result, write_result
from lz_penalty.evaluation.study._offline.plan import COPIED

Score = Callable[[str, str], Any]  # of an answer's name and text

GOLD = {"math500": "math500.jsonl.xz", "aime": "aime24.jsonl.xz", "gpqa": "gpqa_diamond.jsonl.xz"}
KINDS = {"math500": "math", "aime": "aime", "gpqa": "gpqa"}
COPIES, COPIES_SEED = 8, 2  # tasks of each kind in `copies.jsonl`


def scorer(name: str, data: Path) -> tuple[str, Score] | None:
    """Return the field of a score and the function that computes it, for prompts with this name."""
    if name in GOLD:
        gold = [record["answer"] for record in read_lines(data / GOLD[name])]
        return "right", lambda key, text: is_right(KINDS[name], text, gold[int(key.rpartition("-")[2])])
    if name == "humaneval":
        tasks = {record["task_id"]: record for record in read_lines(data / "humaneval.jsonl.gz")}
        return "right", lambda key, text: _passes(tasks[key], text)
    if name in COPIED:
        copies = dict(copy_prompts())
        return "fidelity", lambda key, text: round(copies[key].score(text), 4)
    return None


def copy_prompts() -> list[tuple[str, Any]]:
    """Return the copying tasks of `copies.jsonl` with their names, such as `quote-0`."""
    tasks = copy_tasks(COPIES, seed=COPIES_SEED)
    return [(f"{task.kind}-{number % COPIES}", task) for number, task in enumerate(tasks)]


def _passes(task: dict[str, str], text: str) -> bool:
    program = program_of(task["prompt"], text, task["test"], task["entry_point"])
    return passes(program).passed


def score(path: Path, data: Path, out: Path) -> None:
    """Score one file."""
    about, rows = read_result(path)
    found = scorer(Path(about["job"]["prompts"]).name.partition(".")[0], data)
    texts = [row.pop("text", "") for row in rows]
    if found:
        field, of = found
        with ThreadPoolExecutor(2) as pool:
            scores = list(pool.map(of, [row["id"] for row in rows], texts))
        for row, value in zip(rows, scores, strict=True):
            row[field] = value
    write_result(out / path.name, about, rows)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for path in given.files:
        score(path, given.data, given.out)


if __name__ == "__main__":
    main()
