"""Measure harm: how much worse a penalised model predicts text that is as it should be. Nothing is generated.

`python -m research.presets.harm MODEL --out FILE` measures the settings of `settings` on prose, code, JSON and Markdown, on the
solutions of problems (`--problems`) and on copying tasks. With `--fenced`, it measures code and JSON only, as chat models write
them: after a line that opens a fence. The result has the form of `measure`: a line that describes the run, then a line per
setting and text.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from lz_penalty.evaluation.copying import copy_tasks
from lz_penalty.evaluation.loading import load
from lz_penalty.evaluation.study._offline.files import machine, part_of, read_lines, write_result
from lz_penalty.evaluation.study._offline.harm import harm_of_text
from lz_penalty.evaluation.study._offline.settings import setting
from lz_penalty.evaluation.study._offline.writer import chat_ids, text_ids
from lz_penalty.evaluation.texts import KINDS, texts
from research.presets.settings import all_settings

FENCED = {"code": "python", "json": "json"}  # a kind of text, and the language that its fence names


def cases(tokenizer: Any, given: argparse.Namespace) -> list[tuple[str, list[int], list[int]]]:
    """Return the kind, the prompt's ids and the text's ids of every text to predict."""
    if given.fenced:
        return [
            (f"fenced {kind}", [], text_ids(tokenizer, f"```{language}\n{one.text}")[:1024])
            for kind, language in FENCED.items()
            for one in texts(kind, given.part)
        ]
    found = [(kind, [], text_ids(tokenizer, one.text)[:1024]) for kind in KINDS for one in texts(kind, given.part)]
    for record in part_of(read_lines(given.problems)[: given.limit], given.part) if given.problems else []:
        found.append(("reasoning", chat_ids(tokenizer, record["prompt"]), _ids(tokenizer, record["solution"])))
    for task in copy_tasks(given.copies, seed=1 if given.part == "choose" else 2) if given.copies else []:
        found.append((f"copy {task.kind}", chat_ids(tokenizer, task.prompt), _ids(tokenizer, task.expected)))
    return found


def _ids(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False).input_ids


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder in Hugging Face's layout, or a GGUF file")
    parser.add_argument("--out", type=Path, required=True, help="the results, JSON lines, compressed (.jsonl.xz)")
    parser.add_argument("--part", choices=("choose", "publish", "all"), default="choose")
    parser.add_argument("--settings", nargs="+", help="names of penalties; all of `settings` by default")
    parser.add_argument("--problems", type=Path, help="JSON lines with `prompt` and `solution`")
    parser.add_argument("--limit", type=int, default=2_000, help="at most so many problems")
    parser.add_argument("--copies", type=int, default=4, help="copying tasks of each kind")
    parser.add_argument("--fenced", action="store_true", help="only code and JSON, in fences")
    parser.add_argument("--dtype", default="bfloat16")
    given = parser.parse_args()
    settings = [setting(name) for name in given.settings or all_settings()]
    loaded = load(given.model, dtype=given.dtype)
    about = {"model": Path(given.model).name, "job": {"what": "harm", "part": given.part}, "machine": machine()}
    rows = [
        record
        for kind, prompt, ids in cases(loaded.tokenizer, given)
        for record in harm_of_text(loaded, kind, prompt, ids, settings)
    ]
    write_result(given.out, about, rows)


if __name__ == "__main__":
    main()
