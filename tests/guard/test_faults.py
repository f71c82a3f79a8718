"""Upstream hangs, resets, sends garbage or too much; clients leave or are slow. The guard goes on."""

import asyncio
import socket
import time

import httpx
import psutil
import pytest

from tests.support.guarding import PATHS, events, running


@pytest.fixture(scope="module")
def guard(upstream, tmp_path_factory):
    """A guard with short limits."""
    options = ("--idle-seconds", "1.5", "--connect-seconds", "5", "--body-seconds", "1.5", "--max-body", "100000")
    with running(tmp_path_factory.mktemp("guard"), upstream, *options, "--max-answer", "100000") as one:
        yield one
        assert one.process.runs()
        assert not [line for line in one.lines() if line["level"] in ("error", "critical")]


@pytest.fixture(autouse=True)
def goes_on(guard):
    """After every test the guard answers, and no request is left."""
    yield
    assert guard.post("chat", guard.body("after", words=2)).content == guard.record("after")["sent"]
    for _ in range(100):
        if guard.metric("lz_guard_open_requests") == 0:
            return
        time.sleep(0.02)
    raise AssertionError("a request is still open")


def received(guard, body, route="chat"):
    """The bytes that arrive, and the error that ends them."""
    got = b""
    try:
        with httpx.stream("POST", guard.address + PATHS[route], json=body, timeout=30, trust_env=False) as reply:
            for chunk in reply.iter_raw():
                got += chunk
    except httpx.HTTPError as error:
        return got, error
    return got, None


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503])
def test_an_error_arrives_as_it_is(guard, status):
    how = {"status": status, "text": '{"error": 1}', "type": "application/json", "headers": {"retry-after": "7"}}
    reply = guard.post("chat", guard.body(f"status-{status}", do="plain", **how))
    assert (reply.status_code, reply.text, reply.headers["retry-after"]) == (status, '{"error": 1}', "7")


@pytest.mark.parametrize(
    ("do", "status", "words"), [("hang", 504, "silent for 1.5 s"), ("reset", 502, "broken"), ("no http", 502, "broken")]
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings"])
def test_no_answer_is_a_clear_error(guard, do, status, words, path):
    reply = httpx.post(guard.address + path, json=guard.body(do, do=do), timeout=30, trust_env=False)
    assert reply.status_code == status
    assert words in reply.json()["error"]["message"]


def test_an_upstream_that_is_not_there(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with running(tmp_path, f"http://127.0.0.1:{port}") as lonely:
        reply = lonely.post("chat", lonely.body("nobody"))
        assert (reply.status_code, reply.json()["error"]["type"]) == (502, "server_error")
        assert "cannot be reached" in reply.text


@pytest.mark.parametrize("do", ["hang in stream", "reset in stream", "no end"])
def test_a_stream_that_breaks_off_ends_with_an_error(guard, do):
    """The client reads all that was sent, an event with the error, and the end of the connection."""
    got, error = received(guard, guard.body(do, do=do))
    assert isinstance(error, httpx.RemoteProtocolError)
    sent = guard.record(do)["sent"]
    assert got.startswith(sent)
    (last,) = events(got[len(sent) :])
    assert "upstream" in last["error"]["message"]


@pytest.mark.parametrize("do", ["half an event", "garbage", "not utf-8"])
@pytest.mark.parametrize("split", [{}, {"split": 5}])
def test_nonsense_passes_byte_for_byte(guard, do, split):
    got, error = received(guard, guard.body(f"{do}-{len(split)}", do=do, **split))
    assert error is None
    assert got == guard.record(f"{do}-{len(split)}")["sent"]


def test_a_loop_after_nonsense_is_still_cut(guard):
    for do in ("garbage", "not utf-8"):
        got, _ = received(guard, guard.body("nonsense", do=do, copies=500))
        assert events(got[-2_000:])[-1]["lz_guard"]["action"] == "cut"


def test_a_long_line_passes_in_constant_memory(guard):
    """A line of 100 MB is passed on and counted, and a loop after it is cut."""
    process = psutil.Process(guard.process.pid)
    received(guard, guard.body("warm", do="long line", mib=4, words=3))
    before, most, size, tail = process.memory_info().rss, 0, 0, b""
    body = guard.body("long", do="long line", mib=100, copies=500)
    with httpx.stream("POST", guard.address + PATHS["chat"], json=body, timeout=60, trust_env=False) as reply:
        for chunk in reply.iter_raw():
            size += len(chunk)
            tail = (tail + chunk)[-4_000:]
            most = max(most, process.memory_info().rss)
    assert size > 100 * 2**20
    assert most - before < 16 * 2**20
    assert guard.metric('lz_guard_unexamined_total{why="long event"}') >= 1
    assert b'"lz_guard"' in tail


def test_a_long_whole_answer_passes(guard):
    before = guard.metric('lz_guard_unexamined_total{why="long answer"}')
    reply = guard.post("chat", guard.body("long whole", do="whole", copies=10_000))
    assert reply.content == guard.record("long whole")["sent"]
    assert guard.metric('lz_guard_unexamined_total{why="long answer"}') == before + 1


def test_whole_answers_that_are_no_answers_pass(guard):
    for text in (
        "[" * 50_000,
        "null",
        '{"choices": [{"message": 3}, 4, {"index": [], "message": {"content": {}}}]}',
        "",
    ):
        reply = guard.post("chat", guard.body("odd", do="plain", text=text, type="application/json"))
        assert reply.text == text


def test_a_client_that_leaves_ends_the_upstream_request(guard):
    for number, do in enumerate(["stream", "hang", "hang in stream"]):
        user = f"leaves-{number}"

        async def leave(body):
            client = httpx.AsyncClient(timeout=1, trust_env=False)
            async with client, client.stream("POST", guard.address + PATHS["chat"], json=body) as reply:
                async for _ in reply.aiter_raw():
                    break

        try:
            asyncio.run(leave(guard.body(user, do=do, words=2_000, delay=0.05)))
        except httpx.ReadTimeout:
            assert do == "hang"
        guard.left(user)


def test_the_guard_reads_no_faster_than_the_client(guard):
    """A client that reads nothing: upstream cannot send more than the buffers between them hold."""
    host, port = guard.address.removeprefix("http://").split(":")
    body = httpx.Request("POST", "http://x", json=guard.body("slow client", do="long line", mib=64)).content
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.connect((host, int(port)))
        head = f"POST {PATHS['chat']} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        sizes = []
        for _ in range(40):
            time.sleep(0.1)
            sizes.append(guard.record("slow client").get("sent_size", 0))
            if len(sizes) > 3 and sizes[-1] == sizes[-3] > 0:
                break
        assert sizes[-1] == sizes[-3] < 20 * 2**20
        client.settimeout(10)
        assert client.recv(65_536)


def test_bodies_are_bounded_in_size_and_time(guard):
    reply = httpx.post(guard.address + PATHS["chat"], content=b"x" * 200_000, trust_env=False)
    assert reply.status_code == 413
    assert "100000 bytes" in reply.json()["error"]["message"]
    host, port = guard.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as slow:
        slow.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{")
        assert slow.recv(4_096).startswith(b"HTTP/1.1 408")


def test_time_is_bounded(tmp_path, upstream):
    with running(tmp_path, upstream, "--answer-seconds", "0.5") as guard:
        reply = guard.post("chat", guard.body("t1", do="hang"))
        assert (reply.status_code, "longer than 0.5 s" in reply.text) == (504, True)
        got, error = received(guard, guard.body("t2", words=2_000, delay=0.02))
        assert got
        assert isinstance(error, httpx.RemoteProtocolError)
        guard.left("t2")


def test_connections_are_bounded(tmp_path, upstream):
    with running(tmp_path, upstream, "--max-connections", "3") as guard:
        host, port = guard.address.removeprefix("http://").split(":")
        idle = [socket.create_connection((host, int(port))) for _ in range(4)]
        time.sleep(0.2)
        assert guard.post("chat", guard.body("busy")).status_code == 503
        for one in idle:
            one.close()
        time.sleep(0.2)
        assert guard.post("chat", guard.body("free")).status_code == 200
