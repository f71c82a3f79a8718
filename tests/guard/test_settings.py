"""Settings: ranges, precedence, and what a wrong one says. Also how the server starts and stops."""

import json
import os
import signal
import socket
import threading
import time

import httpx
import pytest

from lz_penalty import LZPenaltyError
from lz_penalty.guard import GuardSettings
from lz_penalty.guard._settings import read_settings
from tests.support import commands
from tests.support.guarding import running

URL = "http://localhost:8000"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("upstream", "ftp://x"),
        ("upstream", "http://user:secret@x"),
        ("upstream", "http://x/?a=1"),
        ("upstream", "http://x y"),
        ("upstream", "http://x:99999"),
        ("upstream", 3),
        ("port", 70_000),
        ("action", "stop"),
        ("finish_reason", "loop"),
        ("min_copies", 2),
        ("min_length", 0),
        ("min_length_data", 10),
        ("max_event", 10),
        ("idle_seconds", 0),
        ("idle_seconds", float("nan")),
        ("routes", {"chats": "cut"}),
        ("routes", {"chat": "stop"}),
        ("routes", []),
        ("allow_header", 1),
        ("ca_file", "no such file"),
        ("instruction", ""),
    ],
    ids=str,
)
def test_wrong_settings_are_refused_with_the_range(name, value):
    with pytest.raises(LZPenaltyError, match=r"must be|Did you mean") as error:
        GuardSettings(**{"upstream": URL, name: value})
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("given", [f"{URL}/v1", f"{URL}/v1/", f"{URL}/", URL])
def test_the_address_may_end_with_v1(given):
    assert GuardSettings(given).upstream == URL


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path):
    file = tmp_path / "guard.toml"
    file.write_text(f'upstream = "{URL}"\nport = 1\nmax_event = 2000\nmin_copies = 7\n')
    given = {
        "LZ_PENALTY_GUARD_PORT": "2",
        "LZ_PENALTY_GUARD_MAX_EVENT": "3000",
        "LZ_PENALTY_GUARD_ROUTES": "chat=watch",
    }
    found = read_settings({"port": 3, "host": None}, given, file)
    assert (found.port, found.max_event, found.min_copies, found.routes) == (3, 3000, 7, {"chat": "watch"})
    assert found.action_of("chat", None) == "watch"
    assert found.action_of("responses", None) == "cut"
    assert found.action_of("chat", "retry") == "retry"


@pytest.mark.parametrize(
    ("environment", "text", "words"),
    [
        ({}, "", "upstream is not set"),
        ({"LZ_PENALTY_GUARD_PROT": "1"}, "", "LZ_PENALTY_GUARD_PORT"),
        ({"LZ_PENALTY_GUARD_PORT": "many"}, "", "must be a number"),
        ({"LZ_PENALTY_GUARD_ALLOW_HEADER": "maybe"}, "", "true or false"),
        ({"LZ_PENALTY_GUARD_ROUTES": "abc"}, "", "LZ_PENALTY_GUARD_ROUTES = 'abc': must be routes and .*chat=retry"),
        ({"LZ_PENALTY_GUARD_ROUTES": "chats=cut"}, "", "LZ_PENALTY_GUARD_ROUTES: chats = 'cut': .*Did you mean chat?"),
        ({"LZ_PENALTY_GUARD_ROUTES": "chat=stop"}, "", "LZ_PENALTY_GUARD_ROUTES.chat = 'stop': must be "),
        ({}, "prot = 1", "Did you mean port"),
        ({}, "port = [", "cannot be read as TOML"),
        ({}, "x" * 100_000, "longer than"),
    ],
)
def test_wrong_sources_are_named(tmp_path, environment, text, words):
    file = tmp_path / "guard.toml"
    file.write_text(text)
    with pytest.raises(LZPenaltyError, match=words):
        read_settings({}, environment, file)


def test_the_help_says_for_which_answers_its_lengths_hold():
    shown = commands.run("guard", "--help").stdout
    assert "What a loop is in a stream" in shown
    assert "An answer that does not stream is also examined" in " ".join(shown.split())


def test_the_command_says_what_is_wrong():
    done = commands.run("guard", "--upstream", URL, "--min-copies", "1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "min_copies = 1.0: must be a finite number from 3 to 64" in done.stderr


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("127.0.0.1", "port {port} is in use on 127.0.0.1: give another --port."),
        ("localhost", "port {port} is in use on localhost: give another --port."),
        ("no.such.host.invalid", "host = 'no.such.host.invalid': must be an address or a name of this machine"),
        ("203.0.113.7", "host = '203.0.113.7': must be an address or a name of this machine"),
    ],
)
def test_where_it_cannot_listen(host, message):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = commands.run("guard", "--upstream", URL, "--host", host, "--port", port)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("lz-penalty: " + message.format(port=port))
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_port_0_takes_a_free_one_and_the_log_has_it(tmp_path, host):
    log = tmp_path / "guard.log"
    with commands.started("guard", "--upstream", URL, "--host", host, "--port", 0, log=log, env={}):
        for _ in range(600):
            if log.exists() and "Application startup complete" in log.read_text():
                break
            time.sleep(0.05)
        address = json.loads(log.read_text().splitlines()[0])["address"]
        assert httpx.get(address + "/health", trust_env=False).json()["status"] == "ok"


def test_health_metrics_and_a_graceful_end(tmp_path, upstream):
    """After SIGTERM, a running answer is finished, and no new connection is accepted."""
    with running(tmp_path, upstream) as guard:
        assert httpx.get(guard.address + "/health", trust_env=False).json()["status"] == "ok"
        assert "lz_guard_requests_total" in httpx.get(guard.address + "/metrics", trust_env=False).text
        got = []
        body = guard.body("last", words=30, delay=0.05)
        thread = threading.Thread(target=lambda: got.append(guard.post("chat", body).content))
        thread.start()
        while not guard.metric("lz_guard_open_requests"):
            time.sleep(0.02)
        os.kill(guard.process.pid, signal.SIGTERM)
        thread.join(30)
        assert guard.process.wait(30) is not None
        assert got == [guard.record("last")["sent"]]
        with pytest.raises(httpx.ConnectError):
            httpx.get(guard.address + "/health", trust_env=False)


def test_answers_that_outlast_the_grace_are_broken_off(tmp_path, upstream):
    with running(tmp_path, upstream, "--grace-seconds", "1") as guard:
        errors = []

        def ask():
            try:
                guard.post("chat", guard.body("endless", do="hang in stream"))
            except httpx.HTTPError as error:
                errors.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        while not guard.metric("lz_guard_open_requests"):
            time.sleep(0.02)
        os.kill(guard.process.pid, signal.SIGTERM)
        assert guard.process.wait(20) is not None
        thread.join(20)
        assert len(errors) == 1
