"""`transformers serve` with the penalty on the bundled model: a server process and HTTP requests."""

import itertools
import json
import shutil
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from lz_penalty import LZPenaltyConfig, LZPenaltyError, bundled_model
from lz_penalty.engines.transformers import LZPenaltyLogitsProcessor
from lz_penalty.policy import settings_from_request
from tests.support import commands, quick_or_deep
from tests.support.examples import example
from tests.support.greedy import PRESETS, generate
from tests.support.transformers_server import MODULE, OFFLINE, running

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("openai")
pytest.importorskip("accelerate")

BATCHING = ("--continuous-batching", "--cb-num-blocks", "32", "--cb-max-batch-tokens", "256")
GUARDED = PRESETS["guarded"].to_request()
TEXT = bundled_model.prompts()[1]
NEW = quick_or_deep(30, 80)


@pytest.fixture(scope="module", params=[(), BATCHING], ids=["generate", "continuous batching"])
def server(request, tmp_path_factory):
    with running(tmp_path_factory.mktemp("server") / "log", *request.param) as address:
        yield address


@pytest.fixture(scope="module")
def with_default(tmp_path_factory):
    """A copy of the model whose generation config asks for the guarded penalty."""
    folder = tmp_path_factory.mktemp("model") / "copy"
    shutil.copytree(bundled_model.path(), folder)
    file = folder / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | GUARDED))
    return folder


def post(address, path, **body):
    """Status and body of the answer."""
    body = {"model": str(bundled_model.path()), "temperature": 0} | body
    request = urllib.request.Request(
        f"{address}/v1/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def complete(address, **body):
    status, answer = post(address, "completions", **{"prompt": TEXT, "max_tokens": NEW} | body)
    assert status == 200, answer
    return json.loads(answer)["choices"][0]["text"]


def streamed(answer):
    return [json.loads(line[6:]) for line in answer.splitlines() if line.startswith("data: {")]


@pytest.fixture(scope="module")
def expect(model, tokenizer):
    """A function that returns the text of `generate` with the processor."""

    def text(config, prompt=TEXT, **how):
        ids = tokenizer(prompt).input_ids
        processor = config and LZPenaltyLogitsProcessor(config, tokenizer=tokenizer, prompt_length=len(ids), **how)
        return tokenizer.decode(
            generate(model, [ids], processor, max_new_tokens=NEW)[0, len(ids) :], skip_special_tokens=True
        )

    return text


def test_completions(server, expect):
    want = expect(PRESETS["guarded"])
    assert want != expect(None)
    assert complete(server) == expect(None)
    assert complete(server, **GUARDED) == want
    assert complete(server) == expect(None)  # the next request is free of it
    _, answer = post(server, "completions", prompt=TEXT, max_tokens=NEW, stream=True, **GUARDED)
    assert "".join(chunk["choices"][0]["text"] for chunk in streamed(answer)) == want


@pytest.mark.parametrize("server", quick_or_deep([()], [(), BATCHING]), indirect=True)
def test_the_client_of_the_examples(server):
    http_client = example("http_client")

    name = str(bundled_model.path())
    got = http_client.main(f"{server}/v1", name, "transformers", TEXT)
    assert got == complete(server, max_tokens=200, **http_client.SETTINGS)
    assert got != complete(server, max_tokens=200)


def test_every_setting_arrives(server, expect):
    config = LZPenaltyConfig.sglang(strength=0.5, window_size=64, buffer_size=4, escalation=2.0, loop_window=100)
    want = expect(config)
    assert want != expect(LZPenaltyConfig.sglang(strength=0.5))
    assert complete(server, **config.to_request()) == want
    assert (
        complete(server, generation_config=json.dumps({"max_new_tokens": NEW, "eos_token_id": 0} | config.to_request()))
        == want
    )


def test_chat_and_responses(server, expect):
    config = LZPenaltyConfig(strength=2.0, buffer_size=2)
    question, prompt = "What is 2 + 3?", "Question: What is 2 + 3?\n"  # as the chat template writes it
    want = expect(config, prompt)
    assert want != expect(None, prompt)
    chat = {"messages": [{"role": "user", "content": question}], "max_tokens": NEW} | config.to_request()
    _, answer = post(server, "chat/completions", **chat)
    assert json.loads(answer)["choices"][0]["message"]["content"] == want
    _, answer = post(server, "chat/completions", stream=True, **chat)
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in streamed(answer)) == want
    _, answer = post(server, "responses", input=question, max_output_tokens=NEW, stream=False, **config.to_request())
    assert json.loads(answer)["output"][0]["content"][0]["text"] == want


BAD = {
    "no number": {"lz_penalty": "strong"},
    "NaN": {"lz_penalty": float("nan")},
    "too large": {"lz_penalty": 0.15, "lz_window_size": 10**9},
    "unknown preset": {"lz_preset": "gaurded"},
    "unknown field": {"lz_penalty": 0.15, "lz_windowsize": 64},
    "unknown and null": {"lz_strenght": None},
    "nothing to refine": {"lz_window_size": 64},
    "contradiction": {"lz_preset": "paper", "lz_min_match_length": 40},
    "contradicts the default": {"lz_penalty": 0.15, "lz_min_match_length": 40},
    "in the generation config": {"generation_config": json.dumps({"lz_buffer_size": 0, "lz_penalty": 1})},
}
# They are refused after the model is loaded.
OF_THE_DEFAULT = ("nothing to refine", "contradicts the default", "in the generation config")


@pytest.mark.parametrize("name", BAD)
def test_bad_fields_are_named(server, expect, name):
    bad = BAD[name]
    field = "lz_buffer_size" if "generation_config" in bad else list(bad)[-1]
    shown = field[3:] if name.startswith("contradict") else field
    for path, given in (
        ("completions", {"prompt": TEXT}),
        ("chat/completions", {"messages": []}),
        ("responses", {"input": ""}),
    ):
        if path == "completions" or name not in OF_THE_DEFAULT:
            status, answer = post(server, path, **given, **bad)
            assert status == 400, answer
            assert shown in json.loads(answer)["detail"]
    assert complete(server, max_tokens=2)  # it goes on serving


def test_other_fields_are_as_ever(server):
    status, answer = post(server, "completions", prompt=TEXT, lzpenalty=0.15)
    assert status == 422
    assert "lzpenalty" in answer
    assert complete(server, max_tokens=2, lz_penalty=None)


def refused(fields, default):
    try:
        settings_from_request(fields, default)
    except LZPenaltyError:
        return True
    return False


def test_a_gate_is_refused_early_only_if_no_default_allows_it():
    """The server checks fields before it loads the model, whose generation config may have a gate that they refine."""
    from lz_penalty.engines.transformers._serving import _some_default

    defaults = [LZPenaltyConfig.paper(), LZPenaltyConfig.failsafe(), LZPenaltyConfig.guarded(gate_low=0, gate_high=1)]
    values = (None, "none", 0, 0.4, 1)
    for low, high, length in itertools.product(values, values, (None, "none", 2)):
        fields = {"lz_gate_low": low, "lz_gate_high": high, "lz_min_match_length": length}
        fields = {name: value for name, value in fields.items() if value is not None}
        early = refused(fields, _some_default(fields))
        assert early == all(refused(fields, default) for default in defaults), fields


def test_a_default_in_the_generation_config(server, expect, with_default):
    model = str(with_default)
    assert complete(server, model=model) == expect(PRESETS["guarded"])
    assert complete(server, model=model, lz_penalty=0) == expect(None)
    assert complete(server, model=model, lz_penalty=0.6) == expect(replace(PRESETS["guarded"], strength=0.6))
    refined = replace(PRESETS["guarded"], min_match_length=1)
    assert complete(server, model=model, lz_min_match_length=1) == expect(refined)
    gated = replace(PRESETS["guarded"], gate_low=0.0, gate_high=0.6, gate_window=30)
    assert complete(server, model=model, lz_gate_low=0.0, lz_gate_high=0.6, lz_gate_window=30) == expect(gated)
    assert complete(server, model=model) == expect(PRESETS["guarded"])


def test_requests_at_the_same_time(server, expect):
    asked = [None, PRESETS["guarded"], LZPenaltyConfig(strength=0.6), PRESETS["small window"], PRESETS["gated"]]
    fields = [config.to_request() if config else {} for config in asked]
    with ThreadPoolExecutor(len(asked)) as pool:
        got = list(pool.map(lambda given: complete(server, **given), fields))
    assert got == [expect(config) for config in asked]


@pytest.mark.parametrize("options", quick_or_deep([()], [(), BATCHING]))
def test_default_and_caps_of_the_server(expect, tmp_path, options):
    config = LZPenaltyConfig(strength=1.0, buffer_size=2)
    settings = {"default": config.to_request(), "max_window_size": 600, "penalise_special_tokens": True}
    prompt = "Question: What is 2 + 3?<|endoftext|>\n" * 2
    want = expect(config, prompt, penalise_special_tokens=True)
    assert want != expect(config, prompt)
    with running(tmp_path / "log", *options, LZ_PENALTY_SERVER=json.dumps(settings)) as server:
        assert complete(server, prompt=prompt) == want
        assert complete(server, prompt=prompt, lz_penalty=0) == expect(None, prompt)
        status, answer = post(server, "completions", prompt=prompt, lz_penalty=0.15, lz_window_size=601)
        assert (status, "lz_window_size = 601: must be at most 600" in answer) == (400, True)


@pytest.mark.parametrize(
    ("options", "environment", "message"),
    [
        (("--cb-use-cuda-graph",), {}, "error: use_cuda_graph = True: the LZ penalty needs"),
        ((), {"LZ_PENALTY_SERVER": '{"default": {"lz_penalty": -1}}'}, "error: LZ_PENALTY_SERVER: lz_penalty = -1"),
    ],
)
def test_refused_at_the_start(options, environment, message):
    done = commands.run("serve", *BATCHING, *options, module=MODULE, env=OFFLINE | environment)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith(message)
    assert "Traceback" not in done.stderr


def test_help_says_it():
    done = commands.run("serve", "--help", module=MODULE, env=OFFLINE)
    assert "With the LZ penalty" in done.stdout
    assert "lz_min_match_length" in done.stdout


# ---------------------------------------------------------------- policies


EARLY = {"lz_end_thinking_copies": 3, "lz_stop_copies": 4}
LOOPS = "<think>\n" + bundled_model.prompts()[8][:60]


@pytest.fixture(scope="module")
def by_generate(model, tokenizer):
    """A function that returns the text of `generate` with these fields, and its outcome."""
    from lz_penalty.engines import transformers as lz

    def text(prompt=TEXT, new=NEW, **fields):
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        lz.enable()
        try:
            out = model.generate(
                ids, do_sample=False, max_new_tokens=new, pad_token_id=1, tokenizer=tokenizer, **fields
            )
        finally:
            lz.disable()
        return tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True), getattr(out, "lz_outcomes", [None])[
            0
        ]

    return text


def test_policies(server, by_generate):
    fields = {
        "lz_policy": "default",
        "lz_penalty": 1,
        "lz_answer": "paper",
        "lz_include_prompt": 1,
        "lz_buffer_size": 4,
    }
    want, _ = by_generate(**fields)
    assert want not in (by_generate()[0], by_generate(lz_penalty=1)[0])
    assert complete(server, **fields) == want
    assert complete(server, lz_preset="guarded", lz_penalty=1, lz_shadow=True) == by_generate()[0]


def test_what_is_stopped_has_its_own_finish_reason(server, by_generate):
    want, outcome = by_generate(LOOPS, new=150, **EARLY)
    assert outcome.ended_thinking
    assert outcome.stopped
    body = {"prompt": LOOPS, "max_tokens": 150, **EARLY}
    _, answer = post(server, "completions", **body)
    (choice,) = json.loads(answer)["choices"]
    assert (choice["text"], choice["finish_reason"]) == (want, "repetition")
    _, answer = post(server, "completions", stream=True, **body)
    chunks = [chunk["choices"][0] for chunk in streamed(answer)]
    assert "".join(chunk["text"] for chunk in chunks) == want
    assert chunks[-1]["finish_reason"] == "repetition"
    _, answer = post(server, "completions", prompt=LOOPS, max_tokens=60)
    assert json.loads(answer)["choices"][0]["finish_reason"] == "length"


def test_chat_and_responses_say_that_they_were_stopped(server):
    question = "ha " * 20
    chat = {"messages": [{"role": "user", "content": question}], "lz_stop_copies": 4}
    _, answer = post(server, "chat/completions", **chat)
    assert json.loads(answer)["choices"][0]["finish_reason"] == "repetition"
    _, answer = post(server, "chat/completions", stream=True, **chat)
    assert streamed(answer)[-1]["choices"][0]["finish_reason"] == "repetition"
    _, answer = post(server, "responses", input=question, stream=False, lz_stop_copies=4)
    answer = json.loads(answer)
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "repetition"})


@pytest.mark.parametrize(
    "bad",
    [
        {"lz_policy": "strict"},
        {"lz_code": "off"},
        {"lz_stop_copies": 10**9},
        {"lz_shadow": "yes"},
        {"lz_thinkin": "none"},
    ],
    ids=str,
)
def test_bad_fields_of_policies_are_named(server, bad):
    status, answer = post(server, "completions", prompt=TEXT, **bad)
    assert status == 400, answer
    assert next(iter(bad)) in json.loads(answer)["detail"]


@pytest.mark.parametrize("options", quick_or_deep([BATCHING], [(), BATCHING]))
def test_a_policy_for_the_whole_server(tmp_path, by_generate, options):
    fields = {"lz_policy": "default", "lz_penalty": 1, **EARLY}
    prompt = LOOPS
    with running(tmp_path / "log", *options, LZ_PENALTY_SERVER=json.dumps({"default": fields})) as server:
        assert complete(server, prompt=prompt) == by_generate(prompt, **fields)[0]
        assert complete(server, prompt=prompt, lz_penalty=0) == by_generate(prompt, **EARLY)[0]
