"""`lz-penalty eval` with vLLM in its process: every kind of task, a run that is killed and goes on, and two that share."""

import signal
import subprocess
import sys
import time

from lz_penalty.evaluation.study._offline.files import read_result
from tests.engines.vllm.engines import environment
from tests.support import real_study

ALL = {"models": ["one"], "settings": ["none", "paper:0.3", "repetition:1.2", "stop:3", "dry:0.8"], "cap": 80}
TASKS = [
    {"name": "tuning instructions", "source": "instructions", "part": "choose", "models": ["one"], "cap": 80}
    | {"settings": ["none", "all", "temperature:0.7"]},
    {"name": "tuning harm", "source": "harm", "part": "choose", "models": ["one"], "settings": ["none", "all"]},
    {"name": "instructions", "source": "instructions", "part": "publish"} | ALL | {"settings": ["none", "best"]},
    {"name": "GSM8K", "source": "gsm8k_test", "temperatures": [0.6], "runs": 3, "runs_per_job": 2} | ALL,
    {"name": "HumanEval", "source": "humaneval"} | ALL,
    {"name": "copies", "source": "copies", "apart": True} | ALL,
    {"name": "JSON", "source": "json"} | ALL,
    {"name": "long", "source": "long", "may_end": False} | ALL,
    {"name": "savings", "source": "batch", "runs": 2} | ALL | {"settings": ["none", "paper:0.3"]},
]
SECONDS = 900


def command(folder, sweep, *more):
    given = ["--data", folder / "data", "--models", folder / "models", "--out", folder / "out", "--limit", "2"]
    given += ["--dtype", "float32", "--batch", "32", "--memory", "0.25", "--texts"]
    return [sys.executable, "-m", "lz_penalty", "eval", *map(str, [sweep, *given, *more])]


def start(arguments, folder):
    return subprocess.Popen(arguments, env=environment(), cwd=folder, stderr=subprocess.PIPE, text=True)


def test_every_kind_of_job(tmp_path):
    real_study.data(tmp_path)
    real_study.models(tmp_path, "one")
    sweep = real_study.sweep(tmp_path, TASKS)
    answers = tmp_path / "out" / "answers"
    first = start(command(tmp_path, sweep), tmp_path)
    deadline = time.monotonic() + SECONDS
    while not list(answers.glob("*.jsonl.xz")) and first.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=SECONDS)  # waits for the engine, which has the same stderr
    assert first.returncode == 143
    kept = {path.name: path.stat().st_mtime_ns for path in answers.glob("*.jsonl.xz")}
    assert kept

    shared = [start(command(tmp_path, sweep, "--shard", f"{number}/2"), tmp_path) for number in (1, 2)]
    said = [process.communicate(timeout=SECONDS)[1] for process in shared]
    assert all("jobs that time batches need the GPU for themselves" in text for text in said), said
    done = subprocess.run(
        command(tmp_path, sweep),
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "1 jobs done, no job is left" in done.stderr
    after = {path.name: path.stat().st_mtime_ns for path in answers.glob("*.jsonl.xz")}
    assert {name: after[name] for name in kept} == kept
    assert len(after) == len(TASKS) + 2  # two jobs of GSM8K, and two of the copies
    check_results({name.removesuffix(".jsonl.xz"): read_result(answers / name) for name in after})
    texts = read_result(tmp_path / "out" / "texts" / "one-json-t0.jsonl.xz")[1]
    assert all(row["text"] for row in texts)


def check_results(found):
    tuning = found["one-tuning-instructions-t0"][1]
    assert {row["penalty"] for row in tuning} >= {"none", "paper:0.05", "stop:20", "temperature:0.7"}
    best = set(found["one-instructions-t0"][0]["job"]["settings"]) - {"none"}
    assert {name.partition(":")[0] for name in best} == {"paper", "stop"}
    plain = {row["id"]: row for row in tuning if row["penalty"] == "none"}
    for row in tuning:  # stopping only ever shortens the answer without a penalty
        if row["penalty"].startswith("stop:"):
            assert row["tokens"] <= plain[row["id"]]["tokens"]
    runs = [row["run"] for name in ("run0", "run2") for row in found[f"one-gsm8k-t0.6-{name}"][1]]
    assert set(runs) == {0, 1, 2}
    for name, field in (
        ("humaneval", "right"),
        ("copies", "fidelity"),
        ("json", "valid"),
        ("gsm8k-t0.6-run0", "right"),
    ):
        rows = next(rows for job, (_, rows) in found.items() if job.startswith(f"one-{name}"))
        assert rows
        assert all(field in row and "text" not in row for row in rows)
    own = {row["penalty"] for row in found["one-copies-t0-own"][1]}
    assert own == {"none", "repetition:1.2"}
    assert {row["penalty"] for row in found["one-copies-t0"][1]} == {"none", "paper:0.3", "stop:3", "dry:0.8"}
    assert {row["tokens"] for row in found["one-long-t0"][1] if not row["penalty"].startswith("stop")} == {80}
    batches = found["one-savings-t0"][1]
    assert [(row["penalty"], row["run"]) for row in batches] == [(p, r) for r in (0, 1) for p in ("none", "paper:0.3")]
    assert all(row["seconds"] > 0 and row["tokens"] > 0 for row in batches)
