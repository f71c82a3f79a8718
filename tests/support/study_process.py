"""Sweeps for `lz-penalty eval`, and servers for them."""

import json
from pathlib import Path

from tests.support.judge_server import answer

MODEL = {"kind": "vllm", "model": "org/model", "name": "served", "max_retries": 0, "timeout": 30}


def toml(value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value)  # strings, numbers and lists are written alike


def write_sweep(folder: Path, *, models: list[dict], tasks: list[dict], grid: dict, judge: dict | None = None) -> Path:
    lines = ['name = "test"', "[grid]", *(f"{key} = {toml(value)}" for key, value in grid.items())]
    for head, entries in (("[[models]]", models), ("[[tasks]]", tasks), ("[judge]", [judge] if judge else [])):
        for entry in entries:
            lines += [head, *(f"{key} = {toml(value)}" for key, value in entry.items())]
    path = folder / "sweep.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def questions(folder: Path, count: int = 3) -> dict:
    """A task whose answers are its numbers."""
    path = folder / "questions.jsonl"
    path.write_text("".join(json.dumps({"question": f"Number {i}?", "answer": str(i)}) + "\n" for i in range(count)))
    return {"name": "numbers", "source": f"file:{path}"}


def knows_lz(body: dict, number: int) -> tuple:
    """A server with lz-penalty: it refuses a bad strength, and answers each question with its number."""
    settings = body.get("vllm_xargs") or body.get("custom_params") or {}
    if settings.get("lz_penalty") == -1:
        return 400, {"error": {"message": "lz_penalty = -1: must be a finite number from 0 to 100."}}
    asked = body["messages"][-1]["content"]
    return 200, answer("ANSWER: " + asked.partition("Number ")[2].partition("?")[0])


def asked(server) -> list[dict]:
    """The requests of the study, without the probe."""
    return [body for body in server.requests if body.get("max_tokens") != 1]
