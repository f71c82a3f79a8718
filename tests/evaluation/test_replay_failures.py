"""`lz-penalty replay` where something goes wrong: bad input, errors of the server, and runs that end before their log."""

import json
import socket
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from lz_penalty import LZPenaltyError
from lz_penalty.cli import app
from lz_penalty.evaluation.replay.running import MOST_UNREACHABLE
from tests.support.commands import run
from tests.support.judge_server import JudgeServer, answer, serve
from tests.support.replaying import GUARDED, asked, chat, counts, echo, replay, stored


def test_malformed_lines_are_named_and_the_rest_goes_on(tmp_path):
    log = stored(
        tmp_path,
        b"{not json",
        b"\xff\xfe",
        [1, 2],
        {"text": "no request"},
        {"body": {"model": "m", "input": "?"}},
        {"model": "m", "prompt": ["a", "b"]},
        {"prompt": "no model"},
        b"",
        chat("good"),
    )
    out = tmp_path / "out.jsonl"
    with serve(echo) as server:
        done = replay(log, server.url, "--json", "--out", str(out))
    assert done.exit_code == 3
    assert (counts(done)["replayed"], counts(done)["problems"]) == (1, 7)
    for line, word in enumerate(
        ["not JSON", "not UTF-8", "it is not an object", "its fields: text", "neither messages nor"], 1
    ):
        assert any(f"log.jsonl:{line}:" in shown and word in shown for shown in done.stderr.splitlines()), done.stderr
    rows = [json.loads(line) for line in out.read_text().splitlines()[1:]]
    assert [row["line"] for row in rows] == [1, 2, 3, 4, 5, 6, 7, 9]
    assert ["error" in row for row in rows] == [True] * 7 + [False]


def test_errors_of_the_server_are_named_and_asked_again_only(tmp_path):
    log, out = stored(tmp_path, *(chat(f"q{i}") for i in range(6))), tmp_path / "out.jsonl"

    def broken(body, number):
        odd = {
            "q1": (400, {"error": {"message": "too long"}}),
            "q2": (500, {"error": {"message": "internal"}}),
            "q3": (200, "<html>hello</html>"),
            "q4": (200, {"choices": []}),
        }
        return odd.get(asked(body)) or echo(body, number)

    with serve(broken) as server:
        done = replay(log, server.url, "--json", "--out", str(out))
    assert done.exit_code == 3
    assert (counts(done)["replayed"], counts(done)["problems"]) == (2, 4)
    for line, word in ((2, "status 400: too long"), (3, "status 500"), (4, "malformed"), (5, "malformed")):
        assert any(f":{line}:" in shown and word in shown for shown in done.stderr.splitlines()), done.stderr
    with serve(echo) as server:
        done = replay(log, server.url, "--json", "--out", str(out))
    assert done.exit_code == 0
    assert counts(done)["replayed"] == 6
    assert {asked(body) for body in server.requests} == {"q1", "q2", "q3", "q4"}
    assert len(server.requests) == 1 + 2 * 4
    with serve(echo) as server:
        assert counts(replay(log, server.url, "--json", "--out", str(out)))["replayed"] == 6
    assert server.requests == []


def test_busy_servers_are_asked_again(tmp_path):
    def busy(body, number):
        return (429 if number == 1 else 503, {"error": {"message": "busy"}}) if number in (1, 2) else echo(body, number)

    with serve(busy) as server:
        done = CliRunner().invoke(
            app, ["replay", str(stored(tmp_path, chat("x"))), "-e", server.url, "--json", "--retries", "3"]
        )
    assert done.exit_code == 0, done.stderr
    assert len(server.requests) == 5
    assert server.times[3] - server.times[1] > 0.3  # pauses


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_dead_endpoint_is_one_error(tmp_path):
    url = f"http://127.0.0.1:{free_port()}"
    done = run("replay", stored(tmp_path, chat("x")), "--retries", "0", "--endpoint", url)
    assert done.returncode == 2
    assert done.stderr.startswith(f"lz-penalty: no answer from {url}/v1: ")
    assert "Traceback" not in done.stderr


def test_a_server_that_dies_loses_nothing(tmp_path):
    total, before = MOST_UNREACHABLE + 30, 5
    log, out = stored(tmp_path, *(chat(f"q{i}") for i in range(total))), tmp_path / "out.jsonl"

    def dying(body, number):
        if number > 2 * before:
            raise ConnectionResetError
        return echo(body, number)

    with serve(dying) as server:
        done = replay(log, server.url, "--json", "--out", str(out), "--concurrency", "1")
    assert len(server.requests) == 1 + 2 * before + MOST_UNREACHABLE  # then it is left alone
    assert done.exit_code == 3
    assert counts(done)["replayed"] == before
    assert "run the command again to continue" in out.read_text()
    with serve(echo) as server:
        again = replay(log, server.url, "--json", "--out", str(out))
    assert counts(again)["replayed"] == total
    assert len(server.requests) == 1 + 2 * (total - before)


def test_a_server_without_the_penalty_is_seen(tmp_path):
    log = stored(tmp_path, chat("x"))
    with serve(lambda body, number: (200, answer("hello"))) as server:
        with pytest.raises(LZPenaltyError, match=r"accepts lz_penalty = -1 in the style 'flat'.*--style"):
            replay(log, server.url)
        assert replay(log, server.url, "--no-probe").exit_code == 0


def test_killed_and_run_again(tmp_path):
    total, log, out = 40, stored(tmp_path, *(chat(f"q{i}") for i in range(40))), tmp_path / "out.jsonl"
    with JudgeServer(echo, delay=0.05).running() as server:
        command = [sys.executable, "-m", "lz_penalty", "replay", str(log), "-e", server.url, "--out", str(out)]
        process = subprocess.Popen([*command, "--concurrency", "2"])
        while len(server.requests) < 25:
            assert process.poll() is None
            time.sleep(0.02)
        process.kill()
        process.wait()
        kept = out.read_text().count('"without"')
        assert 5 < kept < total
        before = len(server.requests)
        assert counts(replay(log, server.url, "--json", "--out", str(out)))["replayed"] == total
    assert len(server.requests) - before == 1 + 2 * (total - kept)


def test_interrupted_in_the_middle_of_a_line(tmp_path):
    log, out = stored(tmp_path, *(chat(f"q{i}") for i in range(4))), tmp_path / "out.jsonl"
    with serve(echo) as server:
        replay(log, server.url, "--out", str(out))
    whole = out.read_bytes()
    out.write_bytes(whole[:-40])
    with serve(echo) as server:
        assert counts(replay(log, server.url, "--json", "--out", str(out)))["replayed"] == 4
    assert {asked(body) for body in server.requests} == {"q3"}
    assert out.read_bytes() == whole


def test_the_same_file_with_one_worker_and_with_many(tmp_path):
    log = stored(tmp_path, *(chat(f"q{i}") for i in range(30)))
    files = []
    for concurrency in ("1", "16"):
        files.append(tmp_path / concurrency)
        with JudgeServer(echo, delay=0.01).running() as server:
            replay(log, server.url, "--out", str(files[-1]), "--concurrency", concurrency, "--retries", "4")
    assert server.most_at_once > 4
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_changed_log_is_asked_anew(tmp_path):
    out = tmp_path / "out.jsonl"
    with serve(echo) as server:
        replay(stored(tmp_path, chat("a"), chat("b")), server.url, "--out", str(out))
        replay(stored(tmp_path, chat("a"), chat("c"), chat("a")), server.url, "--out", str(out))
    assert [asked(body) for body in server.requests[5:]].count("a") == 2  # the third line; the probe asks about c
    rows = [json.loads(line) for line in out.read_text().splitlines()[1:]]
    assert [row["without"]["text"] for row in rows] == ["a, off", "c, off", "a, off"]


BAD = {
    "other settings": (("--penalty", "paper"), "was made with other settings"),
    "unknown style": (("--style", "llama"), "style = 'llama'"),
    "no LZ penalty": (("--penalty", "dry:0.8"), "must be an LZ penalty"),
    "no value": (("--set", "temperature"), "NAME=VALUE"),
    "settings as changes": (("--set", "lz_penalty=0.3"), "with --penalty or --policy"),
    "comparison without expected": (("--compare", "number"), "needs --expected"),
    "unknown comparison": (("--compare", "python", "--expected", "a"), "comparison = 'python'"),
    "bad pattern": (("--pattern", "("), "a regular expression"),
    "bad criterion": (("-c", "mood"), "criterion = 'mood'"),
    "concurrency": (("--concurrency", "0"), "concurrency = 0"),
    "endpoint": (("--endpoint", "localhost:8000"), "an address such as"),
    "path": (("--request", "a..b"), "field = 'a..b'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(tmp_path, name):
    options, message = BAD[name]
    log, out = stored(tmp_path, chat("x")), tmp_path / "out.jsonl"
    out.write_text(
        json.dumps({"settings": {"penalty": GUARDED, "style": "sglang", "model": None, "changes": {}}}) + "\n"
    )
    with pytest.raises(LZPenaltyError, match=message):
        replay(log, "http://127.0.0.1:1/v1", "--out", str(out), *options)


def test_files_that_are_no_results(tmp_path):
    log, url = stored(tmp_path, chat("x")), "http://127.0.0.1:1/v1"
    other = tmp_path / "other"
    other.write_text("hello\n")
    with pytest.raises(LZPenaltyError, match="is no file of a replay"):
        replay(log, url, "--out", str(other))
    assert other.read_text() == "hello\n"
    with pytest.raises(LZPenaltyError, match="is the log itself"):
        replay(log, url, "--out", str(log))
    with pytest.raises(LZPenaltyError, match="cannot be written"):
        replay(log, url, "--out", str(tmp_path / "no" / "folder"))
    with pytest.raises(LZPenaltyError, match="file not found"):
        replay(tmp_path / "missing.jsonl", url)
