"""Runs of jobs: real processes that are killed, go on, and share a folder; and the report of what they measured."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from lz_penalty.evaluation.study._offline import running
from lz_penalty.evaluation.study._offline.claims import claims
from lz_penalty.evaluation.study._offline.files import read_result, write_result
from lz_penalty.evaluation.study._offline.plan import jobs, read_plan
from lz_penalty.evaluation.study._offline.report import write_offline_report
from lz_penalty.evaluation.study._offline.results import Folder
from lz_penalty.evaluation.study._offline.study import Cell, Study, read_study
from lz_penalty.evaluation.study._offline.summaries import Noise, differences, noise, share
from tests.support import ROOT, real_study
from tests.support.commands import run

REAL = ROOT / "research" / "studies" / "real"
HARM = [
    {
        "name": "tuning harm",
        "source": "harm",
        "part": "choose",
        "models": ["one"],
        "settings": ["none", "paper:0.5", "stop:3"],
    },
    {
        "name": "harm",
        "source": "harm",
        "part": "publish",
        "models": ["two"],
        "settings": ["none", "temperature:0.7"],
    },
]


def options(folder, sweep):
    given = ("--data", real_study.data(folder), "--models", real_study.models(folder, "one", "two"))
    return ("eval", sweep, *given, "--out", folder / "out", "--limit", "1", "--dtype", "float32")


def test_a_run_that_was_killed_goes_on(tmp_path):
    arguments = options(tmp_path, real_study.sweep(tmp_path, HARM, ("one", "two")))
    command = [sys.executable, "-m", "lz_penalty", *map(str, arguments)]
    env = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    process = subprocess.Popen(command, env=env, cwd=tmp_path, stderr=subprocess.DEVNULL)
    answers = tmp_path / "out" / "answers"
    deadline = time.monotonic() + 300
    while not list(answers.glob("*.jsonl.xz")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    first = {path.name: path.stat().st_mtime_ns for path in answers.glob("*.jsonl.xz")}
    assert first
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    assert "no job is left" in done.stderr
    after = {path.name: path.stat().st_mtime_ns for path in answers.glob("*.jsonl.xz")}
    assert sorted(after) == ["one-tuning-harm.jsonl.xz", "two-harm.jsonl.xz"]
    assert {name: after[name] for name in first} == first
    about, rows = read_result(answers / "one-tuning-harm.jsonl.xz")
    assert about["job"]["limit"] == 1
    assert {row["penalty"] for row in rows} >= {"none", "paper:0.5", "stop:3"}
    assert all(row["lost"] == 0 for row in rows if row["penalty"] == "none")
    assert sum(row["lost"] for row in rows if row["penalty"] == "paper:0.5") > 0
    _check_temperature(read_result(answers / "two-harm.jsonl.xz")[1])
    again = run(*arguments[:-4], "--limit", "2")
    assert again.returncode == 2
    assert "was made with --limit 1" in again.stderr


def test_the_published_answers_can_be_continued():
    """A sitting begins with the committed answers. Some of them are from other commands, which had a `--limit`."""
    folder, plan = Folder(REAL), read_plan("real")
    made = {path.name for path in folder.answers.iterdir()}
    assert made > {folder.result(job).name for job in jobs(plan) if folder.is_done(job)} > set()
    folder.check_limit(plan, None)


def _check_temperature(rows):
    """A temperature loses right tokens, but never all of them."""
    lost = [(row["lost"], row["right"]) for row in rows if row["penalty"] == "temperature:0.7" and row["right"]]
    assert lost
    assert all(0 < part < whole for part, whole in lost)


def test_jobs_that_cannot_run_are_named(tmp_path):
    pytest.importorskip("inspect_ai")  # the main environment has no vLLM
    tasks = [{"name": "j", "source": "json", "models": ["one", "three"], "settings": ["none"], "cap": 8}]
    arguments = options(tmp_path, real_study.sweep(tmp_path, tasks, ("one", "three")))
    done = run(*arguments)
    assert done.returncode == 1
    assert "this needs vLLM" in done.stderr
    assert "model 'three' needs" in done.stderr
    assert "1 jobs are left" not in done.stderr


def test_a_job_after_a_failed_one_has_a_new_engine(tmp_path, monkeypatch):
    engines, closed = [], []

    class Writer:
        def __init__(self, *_):
            engines.append(self)

        def close(self):
            closed.append(self)
            raise RuntimeError("it is gone already")

    def records(writer, *_):
        if writer is engines[0]:
            raise RuntimeError("the engine has died")
        return [{"penalty": "none", "tokens": 8}]

    monkeypatch.setattr(running, "Writer", Writer)
    monkeypatch.setattr(running, "records", records)
    tasks = [{"name": name, "source": "json", "models": ["one"], "settings": ["none"], "cap": 8} for name in "ab"]
    plan = read_plan(real_study.sweep(tmp_path, tasks))
    folders = {"data": real_study.data(tmp_path), "models": real_study.models(tmp_path, "one"), "out": tmp_path / "out"}
    process = running._Process(plan, running.Options(**folders), print)
    found = process.run()
    assert found.done == ["one-b-t0"]
    assert found.problems == ["job one-a-t0: failed (RuntimeError: the engine has died)."]
    assert len(engines) == 2
    assert closed == [engines[0]]


# ---------------------------------------------------------------- reports


def test_the_committed_report_is_made_from_committed_numbers(tmp_path):
    write_offline_report(REAL, tmp_path)
    made = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert len(made) >= 7
    for path, content in made.items():
        assert (REAL / path).read_bytes() == content, f"{path}: run `lz-penalty report research/studies/real`"
    kept = {path.relative_to(REAL) for part in ("figures", "tables") for path in (REAL / part).iterdir()}
    assert kept <= set(made)


def test_no_text_of_a_question_or_an_answer_is_committed():
    fields = {"penalty", "id", "run", "degenerate", "loop", "distinct_4", "capped", "tokens", "wasted"}
    fields |= {"right", "fidelity", "valid", "kind", "lost", "bits", "plain", "seconds", "answers", "repeats_8"}
    for folder in (REAL / "answers", ROOT / "research" / "presets" / "results" / "answers"):
        for path in sorted(folder.glob("*")) if folder.exists() else []:
            assert {key for row in read_result(path)[1] for key in row} <= fields, path


def write_answers(folder, task, temperature, right, model="one", **more):
    """Write a result file: `right` has, for each setting and question, how many of two runs are right."""
    rows = []
    for penalty, counts in right.items():
        for question, count in enumerate(counts):
            for number in range(2 if temperature else 1):
                measures = {"degenerate": False, "loop": False, "distinct_4": 0.9, "capped": False, "tokens": 10}
                rows.append(
                    {"penalty": penalty, "id": str(question), "run": number, "right": number < count} | measures
                )
    job = {"task": task, "source": "gsm8k_test", "part": "all", "temperature": temperature, "cap": 64} | more
    write_result(
        folder / f"{model}-{task}-t{temperature}.jsonl.xz",
        {"model": model, "job": job, "machine": {"gpu": "none"}},
        rows,
    )


def test_a_report_over_temperatures(tmp_path):
    task = {"name": "G", "source": "gsm8k_test", "models": ["one"], "settings": ["none", "paper:0.15"], "cap": 64}
    sampled = task | {"temperatures": [0.6, 1.0, 1.5], "runs": 2, "apart": True}
    sampled["settings"] = [*task["settings"], "repetition:1.2"]
    sweep = real_study.sweep(tmp_path, [task, sampled])
    sweep.rename(tmp_path / "sweep.toml")
    answers = tmp_path / "answers"
    answers.mkdir()
    write_answers(answers, "G", 0.0, {"none": [1] * 30 + [0] * 10, "paper:0.15": [0] * 40})
    write_answers(answers, "G", 0.6, {"none": [2] * 40, "paper:0.15": [2] * 39 + [1]})
    write_answers(answers, "G", 1.0, {"none": [2] * 40, "paper:0.15": [2] * 40})
    study = read_study(tmp_path)
    cell = next(cell for cell in study.answers if cell.how == "0.6" and cell.penalty == "paper:0.15")
    assert share(study, cell, "right").mean == pytest.approx(79 / 80)
    write_offline_report(tmp_path, tmp_path)
    page = (tmp_path / "report.md").read_text()
    assert "(figures/temperature.svg)" in page
    assert "**-75.0 (" in page
    assert "lower: G on one -75.0" in page
    assert "not established: 2 more comparisons, -1.2 to +0.0" in page
    assert "- G: temperature 0.6, temperature 1 on one (`repetition:1.2`); temperature 1.5 on one" in page
    lines = (tmp_path / "tables" / "differences.csv").read_text().splitlines()
    assert [line.rpartition(",")[2] for line in lines[1:]].count("lower") == 1
    written = {path: path.read_bytes() for path in (tmp_path / "figures").iterdir()}
    write_offline_report(tmp_path, tmp_path)
    assert written == {path: path.read_bytes() for path in (tmp_path / "figures").iterdir()}


def test_a_setting_is_compared_with_the_answers_without_a_penalty_of_its_own_part(tmp_path):
    """vLLM does not always write the same answers twice: here the two parts differ in ten of them."""
    settings = ["none", "paper:0.15", "stop:3"]
    task = {"name": "G", "source": "gsm8k_test", "models": ["one"], "settings": settings, "cap": 64, "parts": 2}
    real_study.sweep(tmp_path, [task]).rename(tmp_path / "sweep.toml")
    answers = tmp_path / "answers"
    answers.mkdir()
    parts = {"part0": {"none": [1] * 30 + [0] * 10, "stop:3": [1] * 30 + [0] * 10}}
    parts["part1"] = {"none": [1] * 20 + [0] * 20, "paper:0.15": [1] * 15 + [0] * 25}
    for part, found in parts.items():
        write_answers(answers, "G", 0.0, found)
        next(answers.glob("*-t0.0.jsonl.xz")).rename(answers / f"one-g-t0-{part}.jsonl.xz")
    study = read_study(tmp_path)
    found = {cell.penalty: (one.more, one.less) for cell, one in differences(study, "G", "right").items()}
    assert found == {"stop:3": (0, 0), "paper:0.15": (0, 5)}
    (none,) = [cell for cell in study.answers if cell.penalty == "none"]
    assert share(study, none, "right").mean == 0.75


def test_costs_are_compared_on_models_that_have_every_setting():
    plan = read_study(REAL).plan
    rows = [{"kind": kind, "right": 100, "lost": 10} for kind in ("prose", "code", "markdown")]
    best = [row | {"lost": 0} for row in rows]
    named = [(model, penalty) for model in ("smollm2", "gemma") for penalty in ("paper:0.15", "guarded:0.4")]
    study = Study(plan, harm=dict.fromkeys(named, rows) | {("qwen05", "guarded:0.4"): best})
    (told,) = claims(study)
    assert "SmolLM2-135M, Gemma-270M: `paper:0.15` 10.0 %; **guarded** 10.0 %." in told


def test_noise_is_what_two_jobs_without_a_penalty_differ_in():
    measures = {"degenerate": False, "loop": False, "distinct_4": 0.9, "capped": False, "run": 0, "wasted": 0}
    jobs_of_none = [
        [measures | {"id": str(n), "tokens": 10 + (n < changed), "right": n < right} for n in range(40)]
        for changed, right in ((0, 30), (7, 28), (3, 31))
    ]
    plain = {Cell("one", "G", "greedy", str(n)): rows for n, rows in enumerate(jobs_of_none)}
    study = Study(read_plan("real"), plain=plain | {Cell("two", "G", "greedy", "0"): jobs_of_none[0]})
    assert noise(study, "G") == [Noise("one", 40, 7, 3, 2)]


def test_a_later_folder_replaces_an_earlier_one(tmp_path):
    task = {"name": "G", "source": "gsm8k_test", "models": ["one"], "settings": ["none", "paper:0.15"], "cap": 64}
    real_study.sweep(tmp_path, [task])
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    (tmp_path / "study.toml").write_text('sweep = "tiny.toml"\nanswers = ["old", "new"]\n')
    write_answers(tmp_path / "old", "G", 0.0, {"none": [1] * 4, "paper:0.15": [1] * 4, "paper:0.3": [1] * 4})
    write_answers(tmp_path / "new", "G", 0.0, {"none": [0] * 4, "paper:0.15": [0] * 4})
    write_answers(tmp_path / "old", "G", 0.6, {"none": [2] * 4}, cap=63)  # another cap: not this task
    study = read_study(tmp_path)
    assert {cell.penalty: sum(study.values(cell, "right").values()) for cell in study.answers} == {
        "none": 0,
        "paper:0.15": 0,
    }


def test_a_folder_without_results_is_named(tmp_path):
    (tmp_path / "study.toml").write_text(
        json.dumps({"sweep": "real"}).replace('{"sweep": ', "sweep = ").rstrip("}") + "\n"
    )
    done = run("report", tmp_path)
    assert done.returncode == 2
    assert "no result of a job" in done.stderr
