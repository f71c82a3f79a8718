"""Requests that `serve-llama` refuses before its model reads them: in memory, and over sockets with uvicorn."""

import asyncio
import json
import socket
import threading
import time
from collections import deque
from contextlib import contextmanager

import pytest

from lz_penalty import LZPenaltyConfig, LZPenaltyError
from lz_penalty.engines.server import ServerSettings
from tests.support.malformed import hostile

uvicorn = pytest.importorskip("uvicorn")

from lz_penalty import _http  # noqa: E402
from lz_penalty._http import (  # noqa: E402
    MAX_DEPTH,
    MAX_DIGITS,
    MAX_INTEGERS,
    MAX_MARKS,
    MAX_OUTSIDE,
    MAX_VALUES,
    Connection,
)
from lz_penalty.engines.llama_cpp import _guard as llama_requests  # noqa: E402
from lz_penalty.engines.llama_cpp._guard import CONFIG, MAX_BODY, Guard, checked_key  # noqa: E402

KEY = b"not-a-secret"
BEARER = (b"authorization", b"Bearer " + KEY)
JSON = (b"content-type", b"application/json")
PATHS = ["/v1/completions", "/v1/chat/completions"]
OTHERS = ["/v1/embeddings", "/extras/tokenize", "/nowhere"]


class App:
    """The app inside a middleware: it reads the body and answers 200."""

    def __init__(self):
        self.bodies, self.configs = [], []

    async def __call__(self, scope, receive, send):
        if scope["type"] == "http":
            message = await receive()
            self.bodies.append(message["body"])
            self.configs.append(CONFIG.get())
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
            await send({"type": "http.response.body", "body": b"ok"})


def ask(guard, *parts, headers=(BEARER, JSON), path=PATHS[0], method="POST", then="http.disconnect"):
    """Return the status, the answer, and how many parts of the body were read. Without parts the body never comes."""
    left, sent = deque(parts), []

    async def receive():
        if not parts:
            await asyncio.sleep(3600)
        if not left:
            return {"type": then}
        return {"type": "http.request", "body": left.popleft(), "more_body": bool(left) or then == "more"}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": list(headers)}
    asyncio.run(guard(scope, receive, send))
    if not sent:
        return None, None, len(parts) - len(left)
    return sent[0]["status"], sent[1]["body"], len(parts) - len(left)


def made(key=KEY, **given):
    app = App()
    return app, Guard(app, ServerSettings(**given), key, public=("/docs",))


def test_fields_reach_the_app():
    app, guard = made()
    for path in PATHS:
        body = b'{"prompt": "a", "lz_preset": "guarded"}'
        assert ask(guard, body[:9], body[9:], path=path)[0] == 200
        assert app.bodies.pop() == body
        assert app.configs.pop() == LZPenaltyConfig.guarded()
        assert CONFIG.get() is None
    assert ask(guard, b"", method="GET", path="/v1/models")[0] == 200
    assert app.configs == [None]


@pytest.mark.parametrize(
    "headers",
    [
        (),
        ((b"authorization", b""),),
        ((b"authorization", KEY),),
        ((b"authorization", b"Bearer"),),
        ((b"authorization", b"Bearer wrong"),),
        ((b"authorization", b"Bearer " + KEY[:-1]),),
        ((b"authorization", b"Bearer " + KEY + b"x"),),
        ((b"authorization", b"Basic " + KEY),),
        ((b"authorization", b"Bearer \xff\xfe"),),
        ((b"authorization", b"Bearer wrong"), BEARER),
    ],
)
@pytest.mark.parametrize("path", [*PATHS, "/v1/models", "/v1/embeddings", "/extras/tokenize", "/nowhere"])
def test_without_the_key_nothing_is_read(headers, path):
    app, guard = made()
    status, answer, read = ask(guard, b"{}", headers=headers, path=path)
    assert (status, read, app.bodies) == (401, 0, [])
    assert json.loads(answer)["error"]["code"] == "invalid_api_key"


def test_what_needs_no_key():
    assert ask(made()[1], b"", headers=(), path="/docs", method="GET")[0] == 200
    assert ask(made(key=None)[1], b"{}", headers=(JSON,))[0] == 200


def test_keys_that_no_header_has():
    for key in ("", "a b", "schlüssel", "a\n", "\x00"):
        with pytest.raises(LZPenaltyError, match="api_key: must be one or more ASCII") as error:
            checked_key(key)
        assert not key or key not in str(error.value)
    assert checked_key(None) is None
    assert checked_key("a-key_1~") == b"a-key_1~"


def test_a_body_that_is_too_long_is_not_read_to_its_end():
    app, guard = made()
    for length in (b"%d" % (MAX_BODY + 1), b"9" * 5000, b"-1", b"x"):
        assert ask(guard, b"{}", headers=(BEARER, (b"content-length", length)))[::2] == (413, 0)
    parts = [b" " * (MAX_BODY // 4)] * 16
    assert ask(guard, *parts)[::2] == (413, 5)
    assert app.bodies == []
    assert ask(guard, b"{" + b" " * (MAX_BODY - 2) + b"}")[0] == 200
    for path in ("/v1/embeddings", "/extras/tokenize"):
        assert ask(guard, *parts, path=path)[::2] == (413, 5)


def test_many_small_parts_are_joined_in_linear_time():
    body = json.dumps({"prompt": "x" * 500_000}).encode()
    app, guard = made()
    since = time.monotonic()
    assert ask(guard, *[body[at : at + 2] for at in range(0, len(body), 2)])[0] == 200
    assert time.monotonic() - since < 5  # joined part by part: a minute
    assert app.bodies == [body]


def test_a_slow_client_is_told_so(monkeypatch):
    monkeypatch.setattr(llama_requests, "BODY_SECONDS", 0.05)
    app, guard = made()
    status, answer, _ = ask(guard)
    assert (status, app.bodies) == (408, [])
    assert "took longer than 0.05 s" in json.loads(answer)["error"]["message"]


def test_a_client_that_goes_away_gets_no_answer():
    app, guard = made()
    assert ask(guard, b'{"prompt": ', then="more")[0] is None
    assert app.bodies == []


def deep(depth, field="lz_penalty"):
    return f'{{"prompt": "a", "{field}": {"[" * depth}{"]" * depth}}}'.encode()


MANY = f"more than {MAX_VALUES} values that are not integers"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "must be a JSON object"),
        (b"\xff\xfe{\x00}\x00", "not JSON in UTF-8"),
        ('{"lz_penalty": 1}'.encode("utf-16"), "not JSON in UTF-8"),
        (b'{"lz_penalty": "\xed\xa0\x80"}', "not JSON in UTF-8"),
        (b'{"lz_penalty": "\\ud800"}', "lz_penalty = '\\ud800'"),
        (b'{"lz_penalty": NaN}', "lz_penalty = nan"),
        (b'{"lz_penalty": -Infinity}', "lz_penalty = -inf"),
        (b'{"lz_penalty": %s}' % (b"9" * 65), f"more than {MAX_DIGITS} digits in a row"),
        (b'{"n": %s}' % (b"9" * 100_000), f"more than {MAX_DIGITS} digits in a row"),
        (b'{"n": "%s", "n": 1%s}' % (b"9" * 999, b"0" * 64), f"more than {MAX_DIGITS} digits in a row"),
        (deep(MAX_DEPTH - 1), "lz_penalty = [[[[...]]]]"),
        (deep(MAX_DEPTH), f"more than {MAX_DEPTH} levels"),
        (b'{"a":' * 900 + b"0" + b"}" * 900, f"more than {MAX_DEPTH} levels"),
        (b"{" + b"]" * 900_000, "not JSON"),
        (deep(1_000), None),
        (deep(5_000), None),
        (deep(100_000), MANY),
        (b"[" * 100_000, MANY),
        (b'{"a":' * 5_000, None),
        (b"[" + b"[]," * 10_000 + b"0]", MANY),
        (b"[" + b"0.5," * 4_097 + b"0]", "more than 4096 full stops and letters e"),
        (b"[" + b"1.2e-300," * 2_049 + b"0]", "more than 4096 full stops and letters e"),
        (b"[" + b"1E5," * 4_097 + b"0]", "more than 4096 full stops and letters e"),
        (b"[" + b'0,"",' * 7_000 + b"0]", MANY),
        (b"[" + b"null,0," * 7_000 + b"0]", MANY),
        (b"[" + b"[0],0," * 5_000 + b"0]", MANY),
        (b"[" + b"0," * MAX_INTEGERS + b"0,0]", f"more than {MAX_INTEGERS} values"),
        (b"[" + b"0  ," * 10_000 + b" " * MAX_OUTSIDE + b"0]", f"must be at most {MAX_OUTSIDE}"),
        (b"{" + b",".join(b'"%d":""' % at for at in range(10_000)) + b"}", MANY),
        (b'{"a": "' + b'\\"' * 5_000 + b'", "b": [' + b"[]," * 9_000 + b"0]}", MANY),
        (b'{"a": "' + b"\\\\" * 5_000 + b'", "b": [' + b"[]," * 9_000 + b"0]}", MANY),
        (b'{"a": "' + b"\\n" * (MAX_MARKS + 1) + b'"}', "commas, opening brackets and backslashes"),
    ],
    ids=range(34),
)
def test_bodies_that_are_refused(body, message):
    app, guard = made()
    status, answer, _ = ask(guard, body)
    assert (status, app.bodies) == (400, [])
    told = json.loads(answer)["error"]["message"]
    assert len(told) < 700
    assert message is None or message in told


@pytest.mark.parametrize("path", OTHERS)
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
def test_bodies_are_checked_on_every_path(path, method):
    app, guard = made()
    for body, message in (
        (b'{"input": [' + b"[]," * 300_000 + b"[]]}", "commas, opening brackets and backslashes"),
        (b"[" * 100_000, MANY),
        (deep(900, "input"), f"more than {MAX_DEPTH} levels"),
        (b'{"input": %s}' % (b"9" * 4_000), "digits in a row"),
        (b'{"input": "a", "lz_penalty": 0.3}', "lz_* fields have no effect on this path"),
        (b'{"input": "a", "lz_nothing": 0.3}', "lz_* fields have no effect on this path"),
    ):
        status, answer, _ = ask(guard, body, path=path, method=method)
        assert (status, app.bodies) == (400, [])
        assert message in json.loads(answer)["error"]["message"]
    assert ask(guard, b'{"input": "a"}', path=path, method=method)[0] == 200
    assert app.configs == [None]


def test_only_json_is_read():
    app, guard = made()
    for kind in (b"", b"text/plain", b"application/x-www-form-urlencoded", b"application/jsonx"):
        for path in PATHS + OTHERS:
            status, answer, _ = ask(guard, b"{}", headers=(BEARER, (b"content-type", kind)), path=path)
            assert (status, app.bodies) == (415, [])
            assert "Content-Type: application/json" in json.loads(answer)["error"]["message"]
    for kind in (b"application/json; charset=utf-8", b"Application/JSON"):
        assert ask(guard, b"{}", headers=(BEARER, (b"content-type", kind)))[0] == 200


def test_the_app_may_have_a_check_of_its_own():
    def check(path, fields):
        raise LZPenaltyError(f"{path} {fields}")

    app = App()
    guard = Guard(app, ServerSettings(), KEY, check=check)
    status, answer, _ = ask(guard, b'{"a": 1}', path="/v1/embeddings")
    assert (status, app.bodies) == (400, [])
    assert json.loads(answer)["error"]["message"] == "/v1/embeddings {'a': 1}"
    assert ask(guard, b"", method="GET", path="/v1/models")[0] == 200


def test_tokens_of_a_long_context_pass():
    app, guard = made()
    for separator in (",", ", "):
        body = f'{{"tokens": [{separator.join(["128000"] * 32_768)}]}}'.encode()
        for path in ("/extras/detokenize", *PATHS):
            assert ask(guard, body, path=path)[0] == 200
            assert app.bodies.pop() == body


def test_hostile_fields_are_refused():
    app, guard = made()
    for what, fields in hostile().items():
        if " deep" in what or "100,000 digits" in what:
            continue  # Python does not write them; above they are bytes
        status, answer, _ = ask(guard, json.dumps({"prompt": "a"} | fields).encode())
        assert status in (400, 413), what
        assert len(answer) < 1_000
    assert app.bodies == []


def test_long_prompts_pass():
    english = "It was, as they say, a dark and stormy night; \\ \"quoted\" [1], {x}: 'no'.\n" * 7_500  # 128k tokens
    code = "def f(a, b):\n\treturn {'a': [a, b], \"b\": (a, b)}\n" * 9_000
    messages = [{"role": "user", "content": [{"type": "text", "text": f"{at}"}]} for at in range(1_000)]
    app, guard = made()
    for given in ({"prompt": english}, {"prompt": code}, {"prompt": "読書" * 150_000}, {"messages": messages}):
        body = json.dumps(given | {"lz_preset": "guarded"}, ensure_ascii=False).encode()
        assert ask(guard, body)[0] == 200
        assert app.bodies.pop() == body
        assert app.configs.pop() == LZPenaltyConfig.guarded()


# ---------------------------------------------------------------- over sockets


@contextmanager
def serving(guard):
    config = uvicorn.Config(guard, port=0, http=Connection, loop="asyncio", lifespan="off", log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield server.servers[0].sockets[0].getsockname()
    finally:
        server.should_exit = True
        thread.join(30)


def request(length, key=KEY):
    head = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n"
    return head.encode() + b"Authorization: Bearer " + key + b"\r\n\r\n"


def answer(client):
    """Return all bytes until the server closes the connection."""
    client.settimeout(20)
    parts = []
    while part := client.recv(65_536):
        parts.append(part)
    return b"".join(parts)


def test_connections_that_wait_are_closed(monkeypatch):
    monkeypatch.setattr(_http, "HEADER_SECONDS", 0.3)
    monkeypatch.setattr(llama_requests, "BODY_SECONDS", 0.3)
    app, guard = made()
    with serving(guard) as address:
        with socket.create_connection(address) as client:  # says nothing
            assert answer(client) == b""
        with socket.create_connection(address) as client:  # half of the headers
            client.sendall(request(2)[:30])
            assert answer(client) == b""
        with socket.create_connection(address) as client:  # no body
            client.sendall(request(2))
            assert b" 408 " in answer(client).splitlines()[0]
        with socket.create_connection(address) as client:  # no key, no body
            client.sendall(request(1000, b"wrong"))
            assert b" 401 " in answer(client).splitlines()[0]
        with socket.create_connection(address) as client:  # too long
            client.sendall(request(10**9))
            assert b" 413 " in answer(client).splitlines()[0]
        with socket.create_connection(address) as client:  # goes away
            client.sendall(request(1000) + b"{")
        with socket.create_connection(
            address
        ) as client:  # a second request on the same connection, half of its headers
            client.sendall(request(2) + b"{}")
            client.settimeout(20)
            assert b" 200 " in client.recv(65_536)
            client.sendall(request(2)[:30])
            since = time.monotonic()
            answer(client)
            assert time.monotonic() - since < 4  # uvicorn alone: never
    assert app.bodies == [b"{}"]


def test_little_is_parsed_at_once(monkeypatch):
    sizes, parse = [], Connection.data_received
    monkeypatch.setattr(Connection, "data_received", lambda self, data: [sizes.append(len(data)), parse(self, data)])
    body = json.dumps({"prompt": "x" * 300_000}).encode()
    app, guard = made()
    with serving(guard) as address, socket.create_connection(address) as client:
        client.sendall(request(len(body)) + body)
        client.settimeout(20)
        assert b" 200 " in client.recv(65_536)
    assert app.bodies == [body]
    assert max(sizes) <= 4_096


def test_an_answer_may_take_longer_than_the_headers(monkeypatch):
    monkeypatch.setattr(_http, "HEADER_SECONDS", 0.1)

    async def slow(scope, receive, send):
        await asyncio.sleep(0.5)
        await App()(scope, receive, send)

    with serving(Guard(slow, ServerSettings(), KEY)) as address, socket.create_connection(address) as client:
        client.sendall(request(2) + b"{}")
        client.settimeout(20)
        assert b" 200 " in client.recv(65_536)
