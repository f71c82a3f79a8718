"""Small sweeps for `lz-penalty eval` that need no inspect-ai, and a folder of questions for them."""

import gzip
import json
import lzma
import os
from pathlib import Path

from lz_penalty import bundled_model

COUNTS = {"gsm8k_train": 7_473, "gsm8k_test": 1_319, "math500": 500, "aime24": 30, "gpqa_diamond": 198}

FAMILY = '["paper:0.05", "paper:0.1", "paper:0.15", "paper:0.2", "paper:0.3", "paper:0.5"]'
STOPS = '["stop:3", "stop:4", "stop:5", "stop:8", "stop:12", "stop:20"]'


def sweep(folder: Path, tasks: list[dict], models: tuple[str, ...] = ("one",)) -> Path:
    """Write a sweep with two families, these tasks, and models that are all the bundled one."""
    lines = ['name = "tiny"', 'runner = "vllm"', "[families]", f"paper = {FAMILY}", f"stop = {STOPS}"]
    for name in models:
        lines += ["[[models]]", f'name = "{name}"', f'title = "{name}"', "length = 2048"]
    for task in tasks:
        lines += ["[[tasks]]", *(f"{key} = {json.dumps(value)}" for key, value in task.items())]
    path = folder / "tiny.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def models(folder: Path, *names: str) -> Path:
    """Make a folder of models: each is a link to the bundled one."""
    made = folder / "models"
    made.mkdir()
    for name in names:
        os.symlink(bundled_model.path(), made / name)
    return made


def data(folder: Path) -> Path:
    """Make a folder with as many questions as the real files have; they are trivial."""
    made = folder / "data"
    made.mkdir()
    lines = [json.dumps({"id": f"task_{n}", "prompt": f"Count to {n}."}) for n in range(175)]
    (made / "instructions.jsonl").write_text("\n".join(lines) + "\n")
    for name, count in COUNTS.items():
        records = (
            {"question": f"{n} + 1?", "prompt": f"{n} + 1?", "answer": f"Add one.\n#### {n + 1}"} for n in range(count)
        )
        if name == "gpqa_diamond":
            records = ({"prompt": f"Which letter is number {n}?", "answer": "A"} for n in range(count))
        elif not name.startswith("gsm8k"):
            records = ({"prompt": f"{n} + 1?", "answer": n % 1_000} for n in range(count))
        text = "".join(json.dumps(record) + "\n" for record in records)
        (made / f"{name}.jsonl.xz").write_bytes(lzma.compress(text.encode(), preset=0))
    problem = {
        "prompt": 'def one():\n    """Return 1."""\n',
        "entry_point": "one",
        "canonical_solution": "    return 1\n",
    }
    problem["test"] = "def check(one):\n    assert one() == 1\n"

    lines = [json.dumps(problem | {"task_id": f"HumanEval/{n}"}) for n in range(164)]
    (made / "humaneval.jsonl.gz").write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))
    return made
