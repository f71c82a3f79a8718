"""Request fields through a real LiteLLM proxy: to a vLLM server, and to `transformers serve`, each with our plug-in."""

import pytest

pytest.importorskip("litellm")

import openai

from lz_penalty import bundled_model
from lz_penalty.detection import find_repetition
from tests.engines.vllm import engines as vllm
from tests.litellm.proxies import KEY, interpreter, running
from tests.support import ROOT
from tests.support.processes import serving

PROMPT = "The old man looked at the sea, and said that"
NEW = 120
FIELDS = [{"lz_preset": "guarded"}, {"lz_preset": "paper", "lz_penalty": 0.3}, {"lz_stop_copies": 5, "lz_penalty": 0.0}]
BAD = {"lz_preset": "guarded", "lz_windowsize": 256}
CONFIG = """
model_list:
  - model_name: hosted
    litellm_params: {{model: "hosted_vllm/{model}", api_base: "{upstream}/v1", api_key: "k"}}
  - model_name: compatible
    litellm_params: {{model: "openai/{model}", api_base: "{upstream}/v1", api_key: "k"}}
litellm_settings: {{num_retries: 0}}
"""


def asker(address, key="k"):
    return openai.OpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0, timeout=300)


def chat(client, model, fields, stream=False):
    """Return the text of an answer to one question."""
    messages = [{"role": "user", "content": PROMPT}]
    how = {"max_tokens": NEW, "temperature": 0, "extra_body": fields, "stream": stream}
    answer = client.chat.completions.create(model=model, messages=messages, **how)
    if not stream:
        return answer.choices[0].message.content
    return "".join(chunk.choices[0].delta.content or "" for chunk in answer if chunk.choices)


def complete(client, model, fields):
    how = {"max_tokens": NEW, "temperature": 0, "extra_body": fields}
    return client.completions.create(model=model, prompt=PROMPT, **how).choices[0].text


def tokens_of(client, model, fields):
    """Return the tokens of a completion, as vLLM shows them beside their log-probabilities."""
    how = {"max_tokens": NEW, "temperature": 0, "extra_body": fields, "logprobs": 1}
    found = client.completions.create(model=model, prompt=PROMPT, **how).choices[0].logprobs.tokens
    assert len(found) > 20
    return found


@pytest.fixture(scope="module")
def vllm_server():
    options = ("--max-num-seqs", "8", "--max-model-len", "512")
    with vllm.serve(*options, python=interpreter(".venv-vllm")) as address:
        yield address


@pytest.fixture(scope="module")
def in_front_of_vllm(vllm_server, tmp_path_factory):
    with running(tmp_path_factory.mktemp("vllm"), CONFIG.format(upstream=vllm_server, model="bundled")) as address:
        yield asker(address, KEY)


@pytest.mark.parametrize("name", ["hosted", "compatible"])
def test_vllm_gives_the_tokens_that_it_gives_when_asked_directly(in_front_of_vllm, vllm_server, name):
    direct = asker(vllm_server)
    plain = complete(direct, "bundled", {})
    assert find_repetition(plain, min_copies=3, min_length=60)
    assert complete(in_front_of_vllm, name, {}) == plain
    for fields in FIELDS:
        fields = {"vllm_xargs": fields}
        want = complete(direct, "bundled", fields)
        assert want != plain
        assert complete(in_front_of_vllm, name, fields) == want
        assert tokens_of(in_front_of_vllm, name, fields) == tokens_of(direct, "bundled", fields)
        want = chat(direct, "bundled", fields)
        assert chat(in_front_of_vllm, name, fields) == want
        assert chat(in_front_of_vllm, name, fields, stream=True) == want


@pytest.mark.parametrize("name", ["hosted", "compatible"])
def test_a_bad_field_is_status_400_with_our_message(in_front_of_vllm, name):
    for ask in (chat, complete):
        with pytest.raises(
            openai.BadRequestError, match=r"lz_windowsize = 256: unknown field\. Did you mean lz_window_size"
        ):
            ask(in_front_of_vllm, name, {"vllm_xargs": BAD})
    assert complete(in_front_of_vllm, name, {})  # the servers go on


@pytest.fixture(scope="module")
def transformers_server():
    command = ["lz_penalty.engines.transformers", "serve", "--device", "cpu", "--dtype", "float32"]
    env = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    with serving(command, env, (str(interpreter(".venv")), "-m")) as address:
        yield address


def test_fields_at_the_top_level_reach_transformers_serve(transformers_server, tmp_path):
    model, direct = str(bundled_model.path()), asker(transformers_server)
    with running(tmp_path, CONFIG.format(upstream=transformers_server, model=model)) as address:
        client = asker(address, KEY)
        plain = complete(direct, model, {})
        for fields in FIELDS:
            want = complete(direct, model, fields)
            assert want != plain
            assert complete(client, "compatible", fields) == want
        with pytest.raises(openai.BadRequestError, match="lz_windowsize = 256: unknown field"):
            chat(client, "compatible", BAD)
