"""Ctrl-C: a real SIGINT to real processes. Each says what was kept and how to go on, in one or two lines."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress

import pytest
from typer.testing import CliRunner

from lz_penalty.cli import app
from lz_penalty.evaluation import generation
from tests.support import ROOT, quick_or_deep

DEADLINE = 240  # seconds; the machine may be busy


def environment():
    return {**os.environ, "PYTHONPATH": str(ROOT / "src")}


@contextmanager
def command(*arguments, cwd, given=None):
    """Start `lz-penalty` as the leader of a process group, as a shell does."""
    process = subprocess.Popen(
        [sys.executable, "-m", "lz_penalty", *map(str, arguments)],
        cwd=cwd,
        env=environment(),
        stdin=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in filter(None, (process.stdin, process.stdout, process.stderr)):
            with suppress(BrokenPipeError):  # what the command did not read
                pipe.close()


def interrupt(process):
    """Send what a terminal sends at Ctrl-C: SIGINT to every process of the group; return the last lines of stderr."""
    os.killpg(process.pid, signal.SIGINT)
    process.wait(DEADLINE)
    errors = process.stderr.read().decode()
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert "Aborted" not in errors
    return errors.splitlines()


def wait_until(condition, process):
    begin = time.monotonic()
    while not condition():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() - begin < DEADLINE
        time.sleep(0.05)


@pytest.mark.parametrize("workers", [1, 2])
def test_detect_in_the_middle_of_a_file(tmp_path, workers):
    """The file is a pipe, so that the command cannot end before it is interrupted."""
    out = tmp_path / "loops.jsonl"
    out.write_text("old\n")
    with command(
        "detect", "-", "--format", "jsonl", "--out", out, "--workers", workers, cwd=tmp_path, given=subprocess.PIPE
    ) as process:
        line = json.dumps({"text": "and so on, " * 500}).encode() + b"\n"
        for _ in range(1_000):  # more than a pipe holds: so the command reads
            process.stdin.write(line)
        process.stdin.flush()
        last = interrupt(process)
    assert last == [
        f"lz-penalty: interrupted. {out} is unchanged: it is written at the end. Begin again with: "
        f"lz-penalty detect - --format jsonl --out {out} --workers {workers}"
    ]
    assert out.read_text() == "old\n"
    assert [path.name for path in tmp_path.iterdir()] == ["loops.jsonl"]


def test_compare_keeps_finished_penalties_and_goes_on(tmp_path):
    out = tmp_path / "results.json"
    few = ("--prompts", 1, "--tokens", 60, "--texts", 1, "--tasks", 0, "--problems", 0, "--out", out)
    with command("compare", "none", "guarded", "paper", *few, cwd=tmp_path) as process:
        wait_until(out.exists, process)
        last = interrupt(process)[-1]
    assert last.startswith(f"lz-penalty: interrupted. {out} contains the penalties that were finished. Go on with: ")
    finished = [row["penalty"] for row in json.loads(out.read_text())["results"]]
    assert finished in (["none"], ["none", "guarded"])
    assert "--out" in last.split("Go on with: lz-penalty compare none guarded paper ")[1]


def test_compare_without_a_file_keeps_nothing(tmp_path):
    with command("compare", "none", cwd=tmp_path) as process:
        first = process.stderr.readline()
        assert b"prompts are plain text" in first
        last = interrupt(process)[-1]
    assert last == "lz-penalty: interrupted. Nothing was kept: --out FILE keeps each penalty that is finished."


KEEP_NOTHING = [("generate", "Once", "-n", 100_000), ("duality",), ("cost",)]


@pytest.mark.parametrize("arguments", quick_or_deep(KEEP_NOTHING[:1], KEEP_NOTHING))
def test_commands_that_keep_nothing_say_so(tmp_path, arguments):
    with command(*arguments, cwd=tmp_path) as process:
        if arguments[0] == "generate":
            process.stderr.readline()
        else:
            time.sleep(2)  # it imports, loads or measures
        last = interrupt(process)[-1]
    assert last.startswith("lz-penalty: interrupted. ")
    assert "othing" in last
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "Once upon "])
def test_generate_says_whether_there_is_text(monkeypatch, text):
    def decode(*_, streamer, **__):
        streamer.on_finalized_text(text)
        raise KeyboardInterrupt

    monkeypatch.setattr(generation, "decode", decode)
    done = CliRunner().invoke(app, ["generate", "Once"])
    assert done.exit_code == 130
    said = "The text so far is above. Nothing else was kept." if text else "Nothing was written yet. Begin again with: "
    assert f"interrupted. {said}" in done.stderr


def test_a_server_says_that_it_has_stopped(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with command("guard", "--upstream", "http://127.0.0.1:9", "--port", port, cwd=tmp_path) as process:

        def listens():
            with socket.socket() as one:
                return one.connect_ex(("127.0.0.1", port)) == 0

        wait_until(listens, process)
        last = interrupt(process)[-1]
    assert last == "lz-penalty: interrupted. The server has stopped. It keeps nothing."


def test_an_interrupt_inside_exec_has_the_exit_code_too(tmp_path):
    """Importing dataclasses and named tuples uses exec(), so that Ctrl-C while a library is imported may come there."""
    (tmp_path / "inside.py").write_text(
        "from lz_penalty.cli.interrupts import telling\n"
        "import typer\n"
        "try:\n"
        "    with telling(serves=False):\n"
        "        exec('raise KeyboardInterrupt')\n"
        "except typer.Exit as error:\n"
        "    raise SystemExit(error.exit_code)\n"
    )
    shown = subprocess.run(
        [sys.executable, "-m", "inside"], cwd=tmp_path, capture_output=True, text=True, env=environment(), check=False
    )
    assert (shown.returncode, shown.stderr) == (130, "lz-penalty: interrupted. Nothing was kept.\n")
