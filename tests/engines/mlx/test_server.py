"""`lz-penalty serve-mlx` in a process of its own: tokens of the reference, per-request fields, refusals, batches, caches."""

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest
from mlx_lm import server as stock
from safetensors.torch import load_file, save_file

from lz_penalty import LZPenaltyConfig, bundled_model
from lz_penalty.engines.mlx_lm import _server as mlx_server
from lz_penalty.errors import BackendUnavailableError
from tests.support.asking import call, refused, streamed
from tests.support.greedy import NEW, PRESETS, assert_same
from tests.support.malformed import malformed
from tests.support.processes import serving

DEFAULT = PRESETS["guarded"]
OFF = {"lz_penalty": 0}
CONFIGS = [None, PRESETS["paper"], PRESETS["gated"], LZPenaltyConfig.sglang()]
MESSAGES = [{"role": "user", "content": "the sea, the sea, the sea, and the old man and the sea"}]
TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"


def written(folder, layers=None):
    """Write the bundled model in float32, or only its first layers, to a folder; return the folder."""
    shutil.copytree(bundled_model.path(), folder)
    config = json.loads((folder / "config.json").read_text())
    layers = layers or config["num_hidden_layers"]
    changed = config | {"dtype": "float32", "num_hidden_layers": layers}
    (folder / "config.json").write_text(json.dumps(changed))
    weights = load_file(folder / "model.safetensors")
    dropped = tuple(f"model.layers.{layer}." for layer in range(layers, config["num_hidden_layers"]))
    kept = {name: tensor.float() for name, tensor in weights.items() if not name.startswith(dropped or ("none",))}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return written(tmp_path_factory.mktemp("mlx") / "bundled")


@pytest.fixture(scope="module")
def server(folder):
    """A server with a default, a cap and a chat template."""
    operator = {"default": DEFAULT.to_request(), "max_window_size": 1024}
    command = ["lz_penalty", "serve-mlx", "--model", str(folder), "--chat-template", TEMPLATE]
    with serving(command, {"LZ_PENALTY_SERVER": json.dumps(operator)}) as address:
        yield f"{address}/v1"


@pytest.fixture(scope="module")
def drafting(folder, tmp_path_factory):
    """A server with a draft model, without a default.

    It caches no prompts: with drafts and a cached prompt, mlx-lm 0.32.2 writes other tokens, also without a penalty.
    """
    draft = written(tmp_path_factory.mktemp("draft") / "short", layers=6)
    command = ["lz_penalty", "serve-mlx", "--model", str(folder), "--draft-model", str(draft)]
    command += ["--prompt-cache-size", "0"]
    with serving(command, {}) as address:
        yield f"{address}/v1"


def fields_of(config):
    return OFF if config is None else config.to_request()


def completion(server, tokenizer, prompt, **fields):
    """Return the answer to a greedy request."""
    body = {"prompt": tokenizer.decode(prompt), "max_tokens": NEW, "logprobs": True} | fields
    return json.loads(call(f"{server}/completions", body))


def tokens_of(answer):
    return [one["id"] for one in answer["choices"][0]["logprobs"]["content"]]


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def text_of(tokenizer, tokens):
    return tokenizer.decode([token for token in tokens if token != 0])


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("alone", [False, True])
def test_completions(server, tokenizer, prompts, truth, config, alone):
    """Requests with a seed are not batched but served alone."""
    fields = fields_of(config) | ({"seed": 1} if alone else {})
    for prompt in prompts:
        assert_same(tokens_of(completion(server, tokenizer, prompt, **fields)), *truth(prompt, config))


def test_the_default_of_the_server(server, tokenizer, prompts, truth):
    assert truth(prompts[1], DEFAULT)[0] != truth(prompts[1], None)[0]
    assert_same(tokens_of(completion(server, tokenizer, prompts[1])), *truth(prompts[1], DEFAULT))
    changed = completion(server, tokenizer, prompts[1], lz_window_size=20)
    assert_same(tokens_of(changed), *truth(prompts[1], replace(DEFAULT, window_size=20)))


def test_streams(server, tokenizer, prompts, truth):
    body = {"prompt": tokenizer.decode(prompts[1]), "max_tokens": NEW} | PRESETS["paper"].to_request()
    got = streamed(f"{server}/completions", body, lambda choice: choice["text"])
    assert got == text_of(tokenizer, truth(prompts[1], PRESETS["paper"])[0]).lstrip(" ")  # as mlx-lm begins a text


@pytest.mark.parametrize("config", [None, DEFAULT, LZPenaltyConfig.sglang()], ids=str)
def test_chat(server, tokenizer, truth, config):
    prompt = tokenizer("".join(f"{one['content']}\n" for one in MESSAGES)).input_ids
    body = {"messages": MESSAGES, "max_tokens": NEW, "logprobs": True} | fields_of(config)
    answer = json.loads(call(f"{server}/chat/completions", body))
    want = truth(prompt, config)
    assert_same(tokens_of(answer), *want)
    assert answer["choices"][0]["message"]["content"] == text_of(tokenizer, want[0])
    told = streamed(f"{server}/chat/completions", body, lambda choice: choice["delta"].get("content", ""))
    assert told == text_of(tokenizer, want[0])


def test_mixed_requests_in_one_batch(server, tokenizer, prompts, truth):
    wanted = [(prompt, config) for prompt in prompts for config in CONFIGS]
    send = partial(completion, server, tokenizer)
    with ThreadPoolExecutor(len(wanted)) as pool:
        answers = list(pool.map(lambda one: send(one[0], **fields_of(one[1])), wanted))
    for (prompt, config), answer in zip(wanted, answers, strict=True):
        assert_same(tokens_of(answer), *truth(prompt, config))


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("config", [PRESETS["gated"], LZPenaltyConfig.sglang()], ids=str)
def test_cached_prompts_count(server, tokenizer, prompts, truth, config, alone):
    """The second request reuses the first one's cache, so that mlx-lm reads only the end of the prompt."""
    fields = config.to_request() | ({"seed": 1} if alone else {})
    longer = prompts[3] + tokenizer(" and the sea, and the sea,").input_ids
    completion(server, tokenizer, prompts[3], **fields)
    answer = completion(server, tokenizer, longer, **fields)
    assert 0 < cached(answer) < len(longer)
    assert_same(tokens_of(answer), *truth(longer, config))


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_drafts(drafting, tokenizer, prompts, truth, config):
    for prompt in prompts[:2] * 2:
        answer = completion(drafting, tokenizer, prompt, **fields_of(config))
        assert_same(tokens_of(answer), *truth(prompt, config))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lz_windowsize": 64}, "Did you mean lz_window_size?"),
        ({"lz_penalty": -1}, "lz_penalty = -1"),
        ({"lz_penalty": "0.15"}, "lz_penalty"),
        ({"lz_preset": "guarded", "lz_window_size": 2048}, "must be at most 1024, the cap of this server"),
        ({"lz_policy": "default"}, "lz_policy"),
    ],
)
@pytest.mark.parametrize("path", ["completions", "chat/completions"])
@pytest.mark.parametrize("stream", [False, True])
def test_bad_fields_are_refused(server, path, fields, message, stream):
    body = {"prompt": "a", "messages": [{"role": "user", "content": "a"}], "stream": stream} | fields
    code, told = refused(f"{server}/{path}", body)
    assert code == 400
    assert message in json.loads(told)["error"]


def test_malformed_fields_are_refused_and_the_server_goes_on(server, tokenizer, prompts, truth):
    for fields in malformed(100):
        code, told = refused(f"{server}/completions", {"prompt": "a", "max_tokens": 1} | fields)
        assert code == 400, fields
        assert 0 < len(json.loads(told)["error"]) < 700
    assert_same(tokens_of(completion(server, tokenizer, prompts[0])), *truth(prompts[0], DEFAULT))


def test_what_cannot_take_effect_ends_the_start(folder):
    for operator, message in (
        ({"stop_token_id": 7}, "only vLLM supports it"),
        ({"count_loops": True}, "this engine does not count loops"),
        ({"default": {"lz_policy": "default"}}, "the default has fields of a policy"),
        ({"defualt": {}}, "Did you mean default?"),
    ):
        done = run("--model", str(folder), LZ_PENALTY_SERVER=json.dumps(operator))
        assert done.returncode == 2
        assert message in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_options_are_those_of_mlx_lm():
    shown = run("--help").stdout
    assert shown.index("lz_*") < shown.index("--prompt-cache-size")
    done = run("--modle", "x")
    assert done.returncode == 2
    assert "unrecognized arguments: --modle" in done.stderr


def run(*arguments, **environment):
    command = [sys.executable, "-m", "lz_penalty", "serve-mlx", *arguments]
    return subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize(
    ("owner", "name"),
    [(stock, "_make_logits_processors"), (stock.ResponseGenerator, "_tokenize"), (stock, "_run_http_server")],
)
def test_another_server_is_refused(monkeypatch, owner, name):
    monkeypatch.delattr(owner, name)
    with pytest.raises(BackendUnavailableError, match=f"mlx-lm .* has another server than .*{name}"):
        mlx_server.serve([])


def test_a_server_that_does_not_use_the_processors_is_refused(monkeypatch):
    monkeypatch.setattr(stock.ResponseGenerator, "_serve_single", lambda self, request, stream: None)
    with pytest.raises(BackendUnavailableError, match="_make_logits_processors in ResponseGenerator"):
        mlx_server.serve([])
