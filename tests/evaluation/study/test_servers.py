"""The study against OpenAI-compatible servers: what goes over the wire, and what happens when something is wrong."""

import json
import os
import signal
import time

import pytest
from inspect_ai.log import read_eval_log

from lz_penalty.evaluation.study.results import read_logs
from tests.support import quick_or_deep
from tests.support.commands import run, started
from tests.support.judge_server import answer, serve, verdict
from tests.support.study_process import MODEL, asked, knows_lz, questions, write_sweep

GRID = {"penalties": ["none"], "temperatures": [0.0], "runs": 1, "max_tokens": 77, "top_p": 0.9, "top_k": 40, "seed": 5}
ALONE = {"lz_end_thinking_copies": "none", "lz_stop_copies": "none", "lz_shadow": 0}
OFF = {"lz_penalty": 0} | ALONE
LZ = {"lz_preset": "paper"} | ALONE
GUARDED = {"lz_preset": "guarded", "lz_penalty": 0.3} | ALONE


@pytest.mark.parametrize(("kind", "field"), [("vllm", "vllm_xargs"), ("sglang", "custom_params")])
def test_request_bodies_field_by_field(tmp_path, kind, field):
    penalties = ["none", "paper:0.15", "guarded:0.3", "repetition:1.2", "frequency:0.4"]
    with serve(knows_lz) as server:
        sweep = write_sweep(
            tmp_path,
            models=[MODEL | {"kind": kind, "endpoints": [server.url]}],
            tasks=[questions(tmp_path, 1)],
            grid=GRID | {"penalties": penalties, "temperatures": [0.0, 0.5], "runs": 2, "greedy_runs": 1},
        )
        done = run("eval", sweep, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    common = {"model": "org/model", "max_tokens": 77}
    wanted = []
    for temperature, seed in ((0.0, 5), (0.5, 5), (0.5, 6)):
        at = common | {"temperature": temperature, "seed": seed}
        at |= {"top_p": 0.9, "top_k": 40} if temperature else {}
        wanted += [
            at | {field: OFF},
            at | {field: LZ},
            at | {field: GUARDED},
            at | {field: OFF, "repetition_penalty": 1.2},
            at | {field: OFF, "frequency_penalty": 0.4},
        ]
    got = asked(server)
    for body in got:
        (message,) = body.pop("messages")
        assert message["role"] == "user"
        assert message["content"].endswith("\n\nNumber 0?")
    assert sorted(map(_text, got)) == sorted(map(_text, wanted))


def _text(body):
    return json.dumps(body, sort_keys=True)


def test_results_are_read_back_and_resuming_asks_for_nothing_twice(tmp_path):
    with serve(knows_lz) as server:
        model = MODEL | {"endpoints": [server.url]}
        grid = GRID | {"penalties": ["none", "guarded"], "temperatures": [0.0, 1.0], "runs": 2}
        sweep = write_sweep(tmp_path, models=[model], tasks=[questions(tmp_path)], grid=grid)
        out = tmp_path / "out"
        assert run("eval", sweep, "--out", out).returncode == 0
        first = len(asked(server))
        assert first == 2 * 2 * 2 * 3
        again = run("eval", sweep, "--out", out)
        assert again.returncode == 2
        assert "--resume" in again.stderr
        assert run("eval", sweep, "--out", out, "--resume").returncode == 0
        assert len(asked(server)) == first
        grown = write_sweep(
            tmp_path,
            models=[model],
            tasks=[questions(tmp_path)],
            grid=grid | {"penalties": ["none", "guarded", "paper"]},
        )
        assert run("eval", grown, "--out", out, "--resume").returncode == 0
        assert len(asked(server)) == first * 3 // 2  # only the new penalty
    rows = read_logs(out / "logs")
    assert len(rows) == first * 3 // 2
    assert {row.correct for row in rows} == {1.0}
    assert {(row.penalty, row.run) for row in rows} == {(p, r) for p in ("none", "guarded", "paper") for r in (1, 2)}


@pytest.mark.parametrize("how", quick_or_deep([signal.SIGINT], [signal.SIGINT, signal.SIGKILL]))
def test_an_interrupted_sweep_goes_on(tmp_path, how):
    with serve(knows_lz, delay=0.3) as server:
        model = MODEL | {"endpoints": [server.url], "connections": 2}
        sweep = write_sweep(
            tmp_path,
            models=[model],
            tasks=[questions(tmp_path, 6)],
            grid=GRID | {"penalties": ["none", "frequency:0.1", "frequency:0.2"]},
        )
        out = tmp_path / "out"
        log = tmp_path / "log"
        with started("eval", sweep, "--out", out, log=log, env={}) as process:
            deadline = time.monotonic() + 200
            while len(asked(server)) < 8 and time.monotonic() < deadline:
                time.sleep(0.05)
            os.kill(process.pid, how)
            code = process.wait(100)
        if how == signal.SIGINT:
            assert code == 130, log.read_text()
            assert "--resume" in log.read_text()
        server.delay = 0
        before, kept = len(asked(server)), recorded(out)
        assert before < 18
        assert kept >= 1
        assert run("eval", sweep, "--out", out, "--resume").returncode == 0
        assert len(asked(server)) - before <= 18 - kept  # what is recorded is not asked for again
    assert len(read_logs(out / "logs")) == 18


def recorded(out):
    """Samples with their scores in all logs, those of a killed process included."""
    logs = [read_eval_log(str(path)) for path in (out / "logs").glob("*.eval")]
    return sum(bool(sample.scores) and sample.error is None for log in logs for sample in log.samples or [])


def test_two_servers_share_the_cells_and_a_dead_one_is_named(tmp_path):
    with serve(knows_lz) as one, serve(knows_lz) as two:
        grid = GRID | {"penalties": ["none", "paper", "guarded", "failsafe"]}
        dead = "http://127.0.0.1:9/v1"
        model = MODEL | {"endpoints": [one.url, dead, two.url]}
        sweep = write_sweep(tmp_path, models=[model], tasks=[questions(tmp_path)], grid=grid)
        done = run("eval", sweep, "--out", tmp_path / "many")
        assert done.returncode == 1
        assert f"endpoint {dead} is dead" in " ".join(done.stderr.split())
        assert len(asked(one)) == len(asked(two)) == 6
        alone = write_sweep(tmp_path, models=[MODEL | {"endpoints": [one.url]}], tasks=[questions(tmp_path)], grid=grid)
        assert run("eval", alone, "--out", tmp_path / "one").returncode == 0
    assert read_logs(tmp_path / "many" / "logs") == read_logs(tmp_path / "one" / "logs")


def test_what_cannot_run_is_named_and_the_rest_goes_on(tmp_path):
    def refuses(body, number):
        if "frequency_penalty" in body:
            return 400, {"error": {"message": "frequency_penalty is not supported here"}}
        return knows_lz(body, number)

    with serve(refuses) as server:
        sweep = write_sweep(
            tmp_path,
            models=[
                MODEL | {"endpoints": [server.url]},
                MODEL | {"name": "gone", "model": "org/gone", "endpoints": ["http://127.0.0.1:9/v1"]},
                {"name": "absent", "kind": "transformers", "model": f"{tmp_path}/absent", "passages": 1},
            ],
            tasks=[
                questions(tmp_path),
                {"name": "lost", "source": f"file:{tmp_path}/nowhere.jsonl"},
                {"name": "hub", "source": "inspect_evals/aime2024"},
            ],
            grid=GRID | {"penalties": ["none", "frequency:0.1", "dry:0.8", "paper"]},
        )
        out = tmp_path / "out"
        done = run("eval", sweep, "--out", out, env={"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")})
        said = " ".join(done.stderr.split())
        assert done.returncode == 1, said
        assert "nowhere.jsonl: cannot be read" in said
        assert "source 'inspect_evals/aime2024': cannot be loaded" in said
        assert "penalty 'dry:0.8': kind 'vllm' does not have it" in said
        assert "endpoint http://127.0.0.1:9/v1 is dead" in said
        assert f"model 'absent': model '{tmp_path}/absent': no such folder or file" in said
        assert "frequency_penalty is not supported here" in said
        assert {row.penalty for row in read_logs(out / "logs")} == {"none", "paper"}
        recorded = len(asked(server))
        server.reply = knows_lz  # mended: only what failed is asked for
        again = run(
            "eval", sweep, "--out", out, "--resume", env={"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
        )
        assert "not supported here" not in again.stderr
        assert len(asked(server)) == recorded + 3
        assert {row.penalty for row in read_logs(out / "logs")} == {"none", "paper", "frequency:0.1"}


def test_a_server_without_the_penalty_is_not_asked_for_it(tmp_path):
    with serve(lambda body, number: (200, answer("ANSWER: 0"))) as server:
        model = MODEL | {"endpoints": [server.url]}
        grid = GRID | {"penalties": ["none", "paper"]}
        sweep = write_sweep(tmp_path, models=[model], tasks=[questions(tmp_path)], grid=grid)
        done = run("eval", sweep, "--out", tmp_path / "out")
    assert done.returncode == 1
    assert "runs without lz-penalty and would ignore the setting" in " ".join(done.stderr.split())
    assert {row.penalty for row in read_logs(tmp_path / "out" / "logs")} == {"none"}


def test_the_judge_and_the_dual_verdict(tmp_path):
    loop = "No! " * 40

    def reply(body, number):
        if body["model"] == "judge-model":
            assert body["response_format"]["type"] == "json_schema"
            return verdict("No! No!" in body["messages"][1]["content"])
        text = loop if "Number 1?" in body["messages"][-1]["content"] else "ANSWER: 0"
        return 200, answer(text, finish="length" if text is loop else "stop")

    with serve(reply) as server:
        sweep = write_sweep(
            tmp_path,
            models=[MODEL | {"endpoints": [server.url]}],
            tasks=[questions(tmp_path, 2)],
            grid=GRID,
            judge={"model": "openai-api/judge/judge-model", "base_url": server.url, "key_variable": "TEST_KEY"},
        )
        done = run("eval", sweep, "--out", tmp_path / "out", env={"TEST_KEY": "secret"})
    assert done.returncode == 0, done.stderr
    right, looping = sorted(read_logs(tmp_path / "out" / "logs"), key=lambda row: row.sample)
    assert (right.exact, right.judged, right.dual, right.capped, right.wasted) == (0, 0, 0, 0, 0)
    assert (looping.exact, looping.judged, looping.dual, looping.capped, looping.degenerate) == (1, 1, 1, 1, 1)
    assert looping.wasted == pytest.approx(10 * 39 / 40, rel=0.01)  # the server counts 10 tokens


def test_questions_with_choices(tmp_path):
    path = tmp_path / "choices.jsonl"
    lines = [{"id": name, "question": "Which?", "answer": name, "choices": ["red", "blue"]} for name in ("red", "blue")]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with serve(lambda body, number: (200, answer("I think so.\n\nANSWER: B"))) as server:
        sweep = write_sweep(
            tmp_path,
            models=[MODEL | {"endpoints": [server.url]}],
            tasks=[{"name": "colours", "source": f"file:{path}"}],
            grid=GRID | {"runs": 2},
        )
        done = run("eval", sweep, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert sorted(body["seed"] for body in asked(server)) == [5, 5, 6, 6]
    rows = read_logs(tmp_path / "out" / "logs")
    assert [(row.sample, row.correct) for row in rows] == [("blue", 1), ("red", 0)] * 2


def test_a_malformed_sweep_does_not_keep_the_others_from_running(tmp_path):
    (tmp_path / "bad.toml").write_text('name = "bad"\n[grid\n')
    with serve(knows_lz) as server:
        good = write_sweep(
            tmp_path, models=[MODEL | {"endpoints": [server.url]}], tasks=[questions(tmp_path)], grid=GRID
        )
        done = run("eval", tmp_path / "bad.toml", good, "--out", tmp_path / "out")
    assert done.returncode == 1
    assert "bad.toml: not TOML" in " ".join(done.stderr.split())
    assert len(read_logs(tmp_path / "out" / "test" / "logs")) == 3


def test_dry_run_sends_nothing_and_estimates(tmp_path):
    with serve(knows_lz) as server:
        model = MODEL | {"endpoints": [server.url], "tokens_per_second": 7.0, "price": [1.0, 1000.0]}
        grid = GRID | {"penalties": ["none", "paper"]}
        sweep = write_sweep(tmp_path, models=[model], tasks=[questions(tmp_path)], grid=grid)
        done = run("eval", sweep, "--out", tmp_path / "out", "--dry-run", env={"COLUMNS": "200"})
        assert not server.requests
    assert done.returncode == 0
    assert not (tmp_path / "out").exists()
    assert "at most 462" in done.stderr  # 2 cells, 3 samples, 77 tokens
    assert "at most 1 min" in done.stderr
    assert "0.46" in done.stderr
