"""The questions of each task, and how an answer to each is scored."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from lz_penalty.errors import LZPenaltyError
from lz_penalty.evaluation.copying import CopyTask, copy_tasks
from lz_penalty.evaluation.json_tasks import JsonTask, json_tasks
from lz_penalty.evaluation.sandbox import passes, program_of
from lz_penalty.evaluation.scoring import is_right
from lz_penalty.evaluation.study._offline.files import Record, part_of, read_lines
from lz_penalty.evaluation.study._offline.plan import BATCH, COPIED, HARM, LETTERS, Task

__all__ = ["FILES", "Question", "data_problem", "questions"]

FILES = {  # the file in the data folder that a source needs; others need none
    "instructions": "instructions.jsonl",
    BATCH: "instructions.jsonl",
    "gsm8k_train": "gsm8k_train.jsonl.xz",
    "gsm8k_test": "gsm8k_test.jsonl.xz",
    "math500": "math500.jsonl.xz",
    "aime": "aime24.jsonl.xz",
    "gpqa": "gpqa_diamond.jsonl.xz",
    "humaneval": "humaneval.jsonl.gz",
}
KINDS = {"gsm8k_train": "gsm8k", "gsm8k_test": "gsm8k", "math500": "math", "aime": "aime", "gpqa": "gpqa"}
NAMES = {"gsm8k_train": "train", "gsm8k_test": "test"}
EACH_KIND = 8  # tasks of each kind of copying, and of JSON
SEED = 2  # of the tasks that are made
GSM8K = "{}\n\nThink step by step, and write the final number at the end."
HUMANEVAL = "Complete this Python function. Write the whole function in one code block.\n\n```python\n{}\n```"
LONG = "Write a {} about {}. Make it as long as you can, with many chapters, and do not stop early."
LONG_FORMS = ("novel", "history book", "travel diary", "handbook")
LONG_SUBJECTS = (
    "a lighthouse",
    "a city under the sea",
    "the people of a mountain village",
    "the voyage of a small ship",
)

Score = Callable[[str], Record]


class Question(NamedTuple):
    """A question with its name, the text that asks it, and a function that scores the text of an answer."""

    name: str
    prompt: str
    score: Score | None = None


def data_problem(task: Task, data: Path) -> str | None:
    """Return why the questions of a task cannot be read here; `None` if they can."""
    file = FILES.get(task.source)
    if file is None or (data / file).is_file():
        return None
    return f"task {task.name!r} needs {data / file}; docs/study.md says where its content comes from."


def questions(task: Task, data: Path) -> list[Question]:
    """Return the questions of a task, in a fixed order; none for harm, which reads texts."""
    problem = data_problem(task, data)
    if problem:
        raise LZPenaltyError(problem)
    return part_of(_all(task.source, data), task.part)[: task.samples]


@cache  # every look at the jobs that are left counts the questions
def _all(source: str, data: Path) -> list[Question]:
    if source == HARM:
        return []
    if source in (*COPIED, "json", "long"):
        return _made(source)
    records = read_lines(data / FILES[source])
    if source in ("instructions", BATCH):
        return [Question(str(record["id"]), record["prompt"]) for record in records]
    if source == "humaneval":
        return [
            Question(record["task_id"], HUMANEVAL.format(record["prompt"].rstrip()), partial(_program, record))
            for record in records
        ]
    made = []
    for number, record in enumerate(records):
        name = f"{NAMES.get(source, source)}-{number}"
        prompt = GSM8K.format(record["question"]) if source in NAMES else record["prompt"]
        made.append(Question(name, prompt, partial(_answer, KINDS[source], record["answer"])))
    return made


def _made(source: str) -> list[Question]:
    if source in COPIED:
        tasks = enumerate(copy_tasks(EACH_KIND, seed=SEED))
        asked = [(n, one) for n, one in tasks if (one.kind == LETTERS) == (source == LETTERS)]
        return [Question(f"{one.kind}-{n % EACH_KIND}", one.prompt, partial(_copy, one)) for n, one in asked]
    if source == "json":
        made = json_tasks(EACH_KIND, seed=SEED)
        return [Question(f"{one.kind}-{n % EACH_KIND}", one.prompt, partial(_json, one)) for n, one in enumerate(made)]
    pairs = [(form, subject) for form in LONG_FORMS for subject in LONG_SUBJECTS]
    return [Question(f"long-{number}", LONG.format(*pair)) for number, pair in enumerate(pairs)]


# ---------------------------------------------------------------- scores


def _answer(kind: str, expected: Any, text: str) -> Record:
    return {"right": is_right(kind, text, expected)}


def _program(task: Record, text: str) -> Record:
    program = program_of(task["prompt"], text, task["test"], task["entry_point"])
    return {"right": passes(program).passed}


def _copy(task: CopyTask, text: str) -> Record:
    return {"fidelity": round(task.score(text), 4)}


def _json(task: JsonTask, text: str) -> Record:
    score = task.score(text)
    return {"valid": score.valid, "right": score.right}
