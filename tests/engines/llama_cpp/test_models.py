"""`serve-llama --models FILE`: a real chat model beside the bundled one, each with its own options and default penalty."""

import json
import urllib.error

import pytest
from llama_cpp.llama_chat_format import Jinja2ChatFormatter

from lz_penalty import LZPenaltyConfig, LZPenaltyError
from lz_penalty.cli.demo import PROMPTS
from lz_penalty.detection import distinct
from lz_penalty.engines.llama_cpp._options import GivenModel, read_models, read_options
from lz_penalty.engines.llama_cpp._processor import exempting_special
from tests.engines.llama_cpp.decoding import by_reference
from tests.support.asking import call, refused, streamed
from tests.support.greedy import NEW, PRESETS
from tests.support.guarded_server import started
from tests.support.guarding import free_port, wait_for

ALONE = {"temperature": 0.0, "repeat_penalty": 1.0}  # the most probable token, without the stock server's own penalty
GUARDED = LZPenaltyConfig.guarded()
OFF = {"lz_penalty": 0}
FILE = """
[[models]]
alias = "chat"
path = "{chat}"
n_ctx = 1024
n_threads = 1
n_threads_batch = 1
type_k = 0    # float32, as in the reference
type_v = 0
default = {{lz_preset = "guarded"}}

[[models]]
alias = "bundled"
path = "bundled.gguf"
default = {{lz_penalty = 0.15}}

[[models]]
alias = "copilot-codex"
path = "bundled.gguf"
"""


@pytest.fixture(scope="module")
def file(gguf_path, smollm2_path):
    """A file of models beside the bundled one."""
    path = gguf_path.parent / "models.toml"
    path.write_text(FILE.format(chat=smollm2_path))
    return path


@pytest.fixture(scope="module")
def server(file):
    port = free_port()
    with started("lz_penalty", "serve-llama", "--models", file, "--port", port, "--interrupt-requests=false"):
        wait_for(port, 300)
        yield f"http://127.0.0.1:{port}/v1"


def messages(text):
    return [{"role": "user", "content": text}]


def reference(llm, text, config, new):
    """Return the tokens of the reference loop that follow a message in the model's own chat template."""
    texts = {name: llm._model.token_get_text(token()) for name, token in ends(llm).items()}
    shown = Jinja2ChatFormatter(template=llm.metadata["tokenizer.chat_template"], **texts)(messages=messages(text))
    prompt = llm.tokenize(shown.prompt.encode(), add_bos=not shown.added_special, special=True)
    tokens, margins = by_reference(llm, prompt, config and exempting_special(config, llm), new)
    assert min(margins) > 1e-3, "a near-tie: choose another prompt"
    return tokens


def ends(llm):
    return {"eos_token": llm.token_eos, "bos_token": llm.token_bos}


def text_of(llm, tokens):
    return llm.detokenize([token for token in tokens if token != llm.token_eos()]).decode()


@pytest.mark.parametrize(
    ("fields", "config"), [(OFF, None), ({}, GUARDED), (PRESETS["paper"].to_request(), PRESETS["paper"])]
)
@pytest.mark.parametrize("text", PROMPTS[:2])
def test_chat_of_a_real_model(server, smollm2, text, fields, config):
    want = text_of(smollm2, reference(smollm2, text, config, 100))
    body = {"model": "chat", "messages": messages(text), "max_tokens": 100} | ALONE | fields
    url = f"{server}/chat/completions"
    assert json.loads(call(url, body))["choices"][0]["message"]["content"] == want
    assert streamed(url, body, lambda choice: choice["delta"].get("content", "")) == want


def test_a_near_loop_of_a_real_model_and_none_with_the_penalty(server, smollm2):
    """An answer is a near-loop if less than half of its 4-grams are different."""
    shares = {}
    for name, fields in (("without", OFF), ("with", {})):
        body = {"model": "chat", "messages": messages(PROMPTS[0]), "max_tokens": 300} | ALONE | fields
        text = json.loads(call(f"{server}/chat/completions", body))["choices"][0]["message"]["content"]
        shares[name] = distinct(smollm2.tokenize(text.encode(), add_bos=False), 4)
    assert shares["without"] < 0.3
    assert shares["with"] > 0.5


def test_each_model_has_its_own_default(server, tokenizer, prompts, truth):
    """The path of copilot-codex has a model of its own, whatever the request names."""
    assert [one["id"] for one in json.loads(call(f"{server}/models"))["data"]] == ["chat", "bundled", "copilot-codex"]
    paper, none = (text_without_end(tokenizer, truth(prompts[1], config)[0]) for config in (PRESETS["paper"], None))
    assert paper != none
    body = {"prompt": tokenizer.decode(prompts[1]), "max_tokens": NEW} | ALONE
    for path, model, want in (
        ("completions", "bundled", paper),
        ("completions", "copilot-codex", none),
        ("engines/copilot-codex/completions", "bundled", none),
    ):
        assert json.loads(call(f"{server}/{path}", body | {"model": model}))["choices"][0]["text"] == want


def text_without_end(tokenizer, tokens):
    return tokenizer.decode([token for token in tokens if token != 0])


def test_a_field_changes_the_default_of_its_model(server):
    """Without a default, lz_window_size alone is an error."""
    body = {"prompt": "a", "max_tokens": 1, "lz_window_size": 64}
    for model in ("chat", "bundled", "no such model", None):  # the last two are the first model
        assert call(f"{server}/completions", body | {"model": model})
    code, told = refused(f"{server}/completions", body | {"model": "copilot-codex"})
    assert code == 400
    assert "without lz_penalty or lz_preset" in told
    assert refused(f"{server}/completions", body | {"model": ["chat"]})[0] == 400


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must contain one or more tables"),
        ("models = 3", "must contain one or more tables"),
        ("[[models]\n", "cannot be read as TOML"),
        ("api_key = 'x'\n", r"api_key = 'x': unknown field\. Known: models"),
        ("[[models]]\npath = 'bundled.gguf'", "model 1: alias = None: must be a text"),
        ("[[models]]\nalias = 'a'", "path = None: must be a text"),
        ("[[models]]\nalias = 'a'\npath = 'none.gguf'", "must be a GGUF file that exists"),
        ("[[models]]\nalias = 'a'\npath = 'bundled.gguf'\nn_ctxx = 4", "n_ctxx = 4: unknown field. Did you mean n_ctx"),
        ("[[models]]\nalias = 'a'\npath = 'bundled.gguf'\nmodel = 'x'", "model = 'x': unknown field"),
        ("[[models]]\nalias = 'a'\npath = 'bundled.gguf'\nn_ctx = 'many'", "n_ctx: Input should be a valid integer"),
        (
            "[[models]]\nalias = 'a'\npath = 'bundled.gguf'\ndefault = 'guarded'",
            "default = 'guarded': must be an object",
        ),
        ("[[models]]\nalias = 'a'\npath = 'bundled.gguf'\ndefault = {lz_penalty = -1}", "lz_penalty = -1"),
        ("[[models]]\nalias = 'a'\npath = 'bundled.gguf'\ndefault = {lz_policy = 'default'}", "has fields of a policy"),
        (
            "[[models]]\nalias = 'a'\npath = 'bundled.gguf'\ndefault = {lz_penalty = 1, lz_window_size = 9000}",
            "the cap",
        ),
        ("[[models]]\nalias = 'a'\npath = 'bundled.gguf'\n" * 2, "alias = 'a' is given more than once"),
    ],
)
def test_bad_files_are_refused(gguf_path, text, message):
    path = gguf_path.parent / "bad.toml"
    path.write_text(text)
    with pytest.raises(LZPenaltyError, match=message):
        read_models(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "exactly one of"),
        (["{model}", "--model", "{model}"], "exactly one of"),
        (["none.gguf"], "must be a GGUF file that exists"),
        (["{model}", "--n_ctxx", "4"], "unrecognized arguments: --n_ctxx"),
        (["{model}", "--n_ctx", "many"], "invalid int value"),
        (["{model}", "--n-gpu-layers", "-2"], "n_gpu_layers: Input should be greater"),
        (["{model}", "--port", "0"], "port = 0"),
        (["{model}", "--ssl-certfile", "none.pem"], "ssl_certfile = 'none.pem': must be a file that exists"),
        (["{model}", "--ssl-keyfile", "{file}"], "without ssl_certfile"),
        (["{model}", "--config_file", "x"], "Use --models"),
        (["{model}", "--models", "{file}"], "MODEL.gguf has no effect"),
        (["--n-ctx", "5", "--models", "{file}"], "--n_ctx has no effect"),
        (["--models", "none.toml"], "No such file"),
    ],
)
def test_bad_options_are_refused(gguf_path, file, arguments, message):
    with pytest.raises(LZPenaltyError, match=message):
        read_options([one.format(model=gguf_path, file=file) for one in arguments])


def test_every_option_of_the_stock_server_is_passed_on(gguf_path):
    """With hyphens or underscores, before or after the model."""
    given = ["--n-gpu-layers", "-1", str(gguf_path), "--n_ctx=64", "--chat-format", "chatml", "--api_key", "key"]
    given += ["--tensor_split", "0.5", "0.5", "--chat_template_kwargs", '{"a": 1}', "--ssl-certfile", str(gguf_path)]
    server, ((model, operator),) = read_options(given)
    assert (server.host, server.port, server.api_key, server.ssl_certfile) == ("127.0.0.1", 8000, "key", str(gguf_path))
    changed = model.model_dump(exclude_unset=True)
    assert changed == {
        "model": str(gguf_path),
        "n_gpu_layers": -1,
        "n_ctx": 64,
        "chat_format": "chatml",
        "tensor_split": [0.5, 0.5],
        "chat_template_kwargs": {"a": 1},
    }
    assert isinstance(model, GivenModel)
    assert operator.default is None


def test_the_key_of_the_environment_is_not_in_the_way(gguf_path, monkeypatch):
    monkeypatch.setenv("LZ_PENALTY_API_KEY", "from-the-environment")
    assert read_options([str(gguf_path)]).server.api_key == "from-the-environment"
    assert read_options([str(gguf_path), "--api_key", "given"]).server.api_key == "given"


def test_tls_and_a_root_path(gguf_path, tmp_path, tokenizer, prompts, truth):
    """Options of the stock server that change how it is reached."""
    import ssl
    import subprocess

    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    made += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True)
    port = free_port()
    options = ["--ssl_certfile", certificate, "--ssl_keyfile", key, "--root_path", "/here", "--model_alias", "tiny"]
    with started("lz_penalty", "serve-llama", gguf_path, "--port", port, *options):
        wait_for(port, 300)
        trusted = ssl.create_default_context(cafile=str(certificate))
        body = {"prompt": tokenizer.decode(prompts[1]), "max_tokens": NEW} | ALONE | PRESETS["paper"].to_request()
        for address in (f"https://127.0.0.1:{port}", f"https://127.0.0.1:{port}/here"):
            got = json.loads(call(f"{address}/v1/completions", body, context=trusted))["choices"][0]["text"]
            assert got == text_without_end(tokenizer, truth(prompts[1], PRESETS["paper"])[0])
        assert "tiny" in call(f"https://127.0.0.1:{port}/v1/models", context=trusted)
        with pytest.raises(urllib.error.HTTPError, match="400"):
            call(f"https://127.0.0.1:{port}/here/v1/completions", body | {"lz_penalty": -1}, context=trusted)
