"""The server in a process of its own: fields take effect per request, bad ones are refused, the key is asked for."""

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from functools import partial

import pytest

from lz_penalty import LZPenaltyConfig, LZPenaltyError
from lz_penalty.engines.server import ServerSettings
from tests.support import asking
from tests.support.greedy import NEW, PRESETS
from tests.support.malformed import malformed

KEY = "not-a-secret"
# Settings that the stock server reads from the environment; each of them would break a test below.
IGNORED = {
    "API_KEY": "another",
    "DRAFT_MODEL": "prompt-lookup-decoding",
    "HF_MODEL_REPO_ID": "no/repository",
    "MODEL_ALIAS": "another",
    "ROOT_PATH": "/elsewhere",
    "WEB_CONCURRENCY": "2",
}
PROTECTED = ("completions", "chat/completions", "embeddings", "engines/copilot-codex/completions", "models", "nowhere")


@pytest.fixture(scope="module")
def server(gguf_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "lz_penalty", "serve-llama", str(gguf_path), "--port", str(port)]
    process = subprocess.Popen(command, env=os.environ | {"LZ_PENALTY_API_KEY": KEY} | IGNORED)
    url = f"http://127.0.0.1:{port}/v1"
    try:
        for _ in range(240):
            assert process.poll() is None, "the server ended"
            try:
                call(f"{url}/models")
                break
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.5)
        yield url
    finally:
        process.terminate()
        process.wait(30)


call = partial(asking.call, key=KEY)
refused = partial(asking.refused, key=KEY)


def request(tokenizer, prompt, **fields):
    greedy = {"max_tokens": NEW, "temperature": 0.0, "repeat_penalty": 1.0}
    return {"prompt": tokenizer.decode(prompt)} | greedy | fields


def text_of(answer):
    return json.loads(answer)["choices"][0]["text"]


def expected(tokenizer, tokens):
    return tokenizer.decode([token for token in tokens if token != 0])


def test_fields_take_effect_per_request(server, tokenizer, prompts, truth):
    prompt = prompts[1]
    for config in (None, PRESETS["guarded"], PRESETS["paper"], LZPenaltyConfig.sglang(), None):
        fields = {} if config is None else config.to_request()
        got = text_of(call(f"{server}/completions", request(tokenizer, prompt, **fields)))
        assert got == expected(tokenizer, truth(prompt, config)[0])


def test_the_stock_penalty_is_off_unless_the_request_asks_for_it(server, tokenizer, prompts, truth):
    guarded = request(tokenizer, prompts[1], **PRESETS["guarded"].to_request())
    del guarded["repeat_penalty"]
    alone = text_of(call(f"{server}/completions", guarded))
    assert alone == expected(tokenizer, truth(prompts[1], PRESETS["guarded"])[0])
    assert text_of(call(f"{server}/completions", guarded | {"repeat_penalty": 1.1})) != alone
    plain = {name: value for name, value in guarded.items() if not name.startswith("lz_")}  # as the stock server
    stock, given = (text_of(call(f"{server}/completions", plain | more)) for more in ({}, {"repeat_penalty": 1.1}))
    assert stock == given != text_of(call(f"{server}/completions", plain | {"repeat_penalty": 1.0}))


def test_streams(server, tokenizer, prompts, truth):
    fields = PRESETS["guarded"].to_request()
    body = request(tokenizer, prompts[1], **fields)
    got = asking.streamed(f"{server}/completions", body, lambda choice: choice["text"], key=KEY)
    assert got == expected(tokenizer, truth(prompts[1], PRESETS["guarded"])[0])


@pytest.mark.parametrize("other", [{}, {"min_tokens": 3}])
def test_logit_bias_does_not_drop_the_penalty(server, tokenizer, prompts, truth, other):
    fields = PRESETS["guarded"].to_request() | {"logit_bias": {"7": 0.0}} | other
    got = text_of(call(f"{server}/completions", request(tokenizer, prompts[1], **fields)))
    assert got == expected(tokenizer, truth(prompts[1], PRESETS["guarded"])[0])


def test_a_grammar_does_not_drop_the_penalty(server, tokenizer, prompts):
    fields = {"grammar": "root ::= [a-z ,.]*", "max_tokens": 60}
    body = request(tokenizer, prompts[1], **fields)
    plain, penalised = (text_of(call(f"{server}/completions", body | more)) for more in ({}, {"lz_penalty": 1.0}))
    for text in (plain, penalised):
        assert re.fullmatch("[a-z ,.]+", text)
    assert plain != penalised


def test_chat(server):
    body = {
        "messages": [{"role": "user", "content": "the sea, the sea, the sea"}],
        "max_tokens": 60,
        "temperature": 0.0,
    }
    plain = call(f"{server}/chat/completions", body)
    fields = {"lz_preset": "guarded", "lz_penalty": 5.0, "lz_min_match_length": 3, "lz_include_prompt": 1}
    without_gate = {"lz_gate_low": "none", "lz_gate_high": "none"}
    penalised = call(f"{server}/chat/completions", body | fields | without_gate)
    texts = [json.loads(answer)["choices"][0]["message"]["content"] for answer in (plain, penalised)]
    assert texts[0] != texts[1]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lz_windowsize": 64}, "Did you mean lz_window_size?"),
        ({"lz_penalty": -1}, "lz_penalty = -1"),
        ({"lz_penalty": "0.15"}, "lz_penalty"),
        ({"lz_preset": "guarded", "lz_window_size": 65536}, "the cap of this server"),
        ({"lz_window_size": 64}, "without lz_penalty or lz_preset"),
    ],
)
@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_bad_fields_are_refused(server, path, fields, message):
    code, answer = refused(f"{server}/{path}", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]} | fields)
    assert code == 400
    assert message in json.loads(answer)["error"]["message"]


def test_malformed_fields_are_refused_and_the_server_goes_on(server, tokenizer, prompts, truth):
    for fields in malformed(300):
        code, answer = refused(f"{server}/completions", {"prompt": "a", "max_tokens": 1} | fields)
        assert code == 400, fields
        assert json.loads(answer)["error"]["message"]
    for body in (
        b"[" * 100_000,
        b'{"lz_penalty": ' + b"[" * 1_000 + b"]" * 1_000 + b"}",
        b'{"lz_%s": 1}' % (b"x" * 10**6),
    ):
        code, answer = refused(f"{server}/completions", body)
        assert code == 400
        assert len(json.loads(answer)["error"]["message"]) < 700
    test_fields_take_effect_per_request(server, tokenizer, prompts, truth)


def bad_bodies():
    """Paths, and bodies of which the stock server would make thousands of errors, or fail."""
    lists = b'{"input": [' + b",".join([b"[]"] * 300_000) + b"]}"
    for path in ("v1/embeddings", "extras/tokenize", "extras/tokenize/count", "extras/detokenize", "v1/completions"):
        yield path, lists
        yield path, b"[" * 500_000
        yield path, b'{"input": ' + b"[" * 900 + b"]" * 900 + b"}"
    for item in ({}, {"role": "user"}, {"role": "user", "content": [{}] * 1_000}, 1, "x" * 2_000):
        yield "v1/chat/completions", {"messages": [item] * (1 if "content" in str(item) else 500)}
    yield "v1/chat/completions", {"messages": [1] * 32_768}
    yield "v1/completions", {"prompt": [1] * 32_768}
    yield "v1/completions", {"prompt": [{}] * 3_000}
    yield "v1/completions", {"prompt": "a", "logit_bias": {"x" * 90 + str(at): "x" for at in range(3_000)}}
    yield "v1/embeddings", {"input": [1] * 32_768}
    yield "extras/tokenize", {"input": ["x" * 900_000]}
    yield "extras/detokenize", {"tokens": ["x"] * 6_000}
    yield "v1/embeddings", {"input": "a", "lz_penalty": 0.1}


def test_bad_bodies_get_short_answers(server):
    for path, body in bad_bodies():
        code, answer = refused(f"{server.removesuffix('/v1')}/{path}", body)
        assert code == 400, (path, answer[:300])
        assert len(answer) < 1_000
        told = json.loads(answer)["error"]
        assert told["type"] == "invalid_request_error"
        assert "xxx" not in told["message"]


def test_an_error_says_where_it_is(server):
    messages = [{"role": "user", "content": "a"}] * 3 + [{"role": "user", "content": 7}]
    told = json.loads(refused(f"{server}/chat/completions", {"messages": messages})[1])["error"]["message"]
    assert "messages.3." in told
    told = json.loads(refused(f"{server}/completions", {"prompt": "a", "max_tokens": "many"})[1])["error"]["message"]
    assert "max_tokens: Input should be a valid integer" in told


def test_bodies_end_with_the_first_error_of_a_list(monkeypatch):
    from pydantic import ValidationError

    from lz_penalty.engines.llama_cpp import _server as llama_server

    counts = []
    monkeypatch.setattr(
        llama_server, "first_errors", lambda error: str(counts.append(ValidationError.error_count(error)))
    )
    check = llama_server._check_of_bodies()
    for path, body in bad_bodies():
        if isinstance(body, dict) and "logit_bias" not in body and "lz_penalty" not in body:
            with pytest.raises(LZPenaltyError, match="invalid for this path"):
                check(f"/{path}", body)
    assert len(counts) == 11
    assert max(counts) < 20


def given(path, api_key=KEY, **options):
    """Return the arguments of `create_app` for one model."""
    from lz_penalty.engines.llama_cpp._options import GivenModel, GivenServer, ServedModel

    return GivenServer(api_key=api_key), [ServedModel(GivenModel(model=str(path), **options), ServerSettings())]


def test_every_path_with_a_body_has_a_check(gguf_path):
    from lz_penalty.engines.llama_cpp import _server as llama_server

    app = llama_server.create_app(*given(gguf_path))
    taken = {}
    for path, methods in app.openapi()["paths"].items():
        for method, told in methods.items():
            if "requestBody" in told:
                schema = told["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
                taken[f"{method} {path}"] = schema
                checked = next(body for end, body in llama_server._BODIES.items() if path.endswith(end))
                assert checked.__name__ == schema, path
    assert len(taken) == 6


@pytest.mark.parametrize("path", PROTECTED)
def test_the_key_is_asked_for(server, path):
    for key in ("wrong", "", KEY + "x", IGNORED["API_KEY"]):
        code, answer = refused(f"{server}/{path}", {"prompt": "a", "lz_penalty": 0.1}, key=key)
        assert code == 401
        assert json.loads(answer)["error"]["code"] == "invalid_api_key"


def test_without_the_key_no_body_is_waited_for(server):
    host, port = server.split("/")[2].split(":")
    for key, code in (("wrong", b" 401 "), (KEY, b" 413 ")):
        head = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {key}\r\nContent-Length: 99999999\r\n\r\n"
        with socket.create_connection((host, int(port)), timeout=20) as client:
            client.sendall(head.encode())
            told = b""
            while part := client.recv(65_536):  # until the server closes the connection
                told += part
        assert code in told.splitlines()[0]


def test_a_browser_may_read_a_refusal(server):
    asked = urllib.request.Request(f"{server}/completions", b"{}", {"Origin": "http://a.example"})
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(asked, timeout=60)
    assert caught.value.code == 401
    assert caught.value.headers["access-control-allow-origin"]


def test_no_other_model_is_served(server, gguf_path):
    assert [one["id"] for one in json.loads(call(f"{server}/models"))["data"]] == [str(gguf_path)]


@pytest.fixture
def replaced(tmp_path, gguf_path):
    """A file that would replace all settings: no key."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"host": "0.0.0.0", "models": [{"model": str(gguf_path), "verbose": False}]}))
    return str(path)


def test_no_file_replaces_the_settings(gguf_path, replaced):
    command = [sys.executable, "-m", "lz_penalty", "serve-llama", str(gguf_path), "--host", "0.0.0.0"]
    environment = os.environ | {"LZ_PENALTY_API_KEY": KEY, "CONFIG_FILE": replaced}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "CONFIG_FILE = " in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_settings_in_use_are_verified(gguf_path, replaced, monkeypatch):
    from lz_penalty.engines.llama_cpp import _server as llama_server

    llama_server.create_app(*given(gguf_path))
    monkeypatch.setattr(llama_server, "_REPLACES", "A_NAME_THAT_IS_NOT_SET")
    monkeypatch.setenv("CONFIG_FILE", replaced)
    with pytest.raises(LZPenaltyError, match="another API key or model"):
        llama_server.create_app(*given(gguf_path))
    with pytest.raises(LZPenaltyError, match="another API key or model"):
        llama_server.create_app(*given(gguf_path, api_key=None, n_ctx=64))


def test_without_a_key_only_loopback(gguf_path):
    command = [sys.executable, "-m", "lz_penalty", "serve-llama", str(gguf_path), "--host", "0.0.0.0"]
    environment = {name: value for name, value in os.environ.items() if name != "LZ_PENALTY_API_KEY"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "loopback" in done.stderr
