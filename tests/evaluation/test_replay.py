"""`lz-penalty replay` over HTTP: what is sent and counted, with a real server of the bundled model and with a recorder."""

import gzip
import json

import pytest

from lz_penalty import LZPenaltyConfig, LZPenaltyError, bundled_model
from lz_penalty.bundled_model import problems
from lz_penalty.engines.transformers import LZPenaltyLogitsProcessor
from lz_penalty.evaluation.measures import Checker
from lz_penalty.evaluation.replay.pairs import Summary
from tests.support.commands import run
from tests.support.greedy import generate
from tests.support.judge_server import answer, serve
from tests.support.replaying import ALONE, GUARDED, OFF, chat, counts, echo, penalty_server, replay, settings, stored
from tests.support.transformers_server import running

pytest.importorskip("fastapi")


# ---------------------------------------------------------------- a real server


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running(tmp_path_factory.mktemp("server") / "log") as address:
        yield address


def test_loops_are_broken_and_answers_kept(server, tmp_path, model, tokenizer):
    name = str(bundled_model.path())
    questions = [one for one in problems.generate(seed=1, n=60, split="heldout") if one.family == "expression"][:2]
    prose = [
        {"model": name, "prompt": text, "max_tokens": 120, "temperature": 0} for text in bundled_model.prompts()[:2]
    ]
    lines = [{"body": chat(one.question, model=name, max_tokens=120), "answer": one.answer} for one in questions]
    log, out = stored(tmp_path, *prose, *lines), tmp_path / "out.jsonl"
    command = ["replay", log, "--endpoint", server, "--out", out, "--expected", "answer", "--pattern", "Answer: (.*)"]
    done = run(*command, "--concurrency", "3", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["replayed"] == 4
    assert found["without"]["loops"] == found["loops_broken"] >= 1
    assert found["with_penalty"]["loops"] == found["sampled"] == found["problems"] == 0
    assert found["without"]["wasted"] > 100 > found["with_penalty"]["wasted"]
    assert found["checked"] == found["without"]["right"] == found["with_penalty"]["right"] == 2
    assert found["lost"] == found["won"] == 0
    assert found["without"]["cut_off"] >= 2
    assert found["counted"] == 4
    rows = [json.loads(line) for line in out.read_text().splitlines()[1:]]
    assert [row["line"] for row in rows] == [1, 2, 3, 4]
    ids = tokenizer(prose[0]["prompt"]).input_ids
    for side, config in (("without", None), ("with", LZPenaltyConfig.guarded())):
        processor = config and LZPenaltyLogitsProcessor(config, tokenizer=tokenizer, prompt_length=len(ids))
        written = generate(model, [ids], processor, max_new_tokens=120)[0, len(ids) :]
        assert rows[0][side]["text"] == tokenizer.decode(written, skip_special_tokens=True)
    shown = run(*command)
    words = " ".join(shown.stdout.split())
    assert "new loops 0" in words
    assert "lost 0 won 0" in words


def test_a_refusal_of_the_real_server_is_named_and_the_rest_goes_on(server, tmp_path):
    name = str(bundled_model.path())
    good = chat("What is 2 + 3?", model=name, max_tokens=5)
    log = stored(tmp_path, good | {"no_such_field": 1}, good)
    done = replay(log, server, "--json")
    assert done.exit_code == 3
    assert counts(done)["replayed"] == counts(done)["problems"] == 1
    assert "log.jsonl:1: status 422" in done.stderr
    assert "no_such_field" in done.stderr


# ---------------------------------------------------------------- what is sent

BODIES = {
    "flat": lambda given: given,
    "vllm": lambda given: {"vllm_xargs": given},
    "sglang": lambda given: {"custom_params": given},
}


@pytest.mark.parametrize("style", BODIES)
def test_bodies_field_by_field(tmp_path, style):
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    first = chat("one", max_tokens=9, top_p=0.5, tools=tools, stream=True, stream_options={"include_usage": True}, n=3)
    second = {"model": "m", "prompt": [1, 2, 3], "max_tokens": 7, "stop": ["x"], "lz_penalty": 0.9}
    with serve(echo) as server:
        done = replay(stored(tmp_path, first, {"request": second}), server.url, "--style", style, "--concurrency", "1")
        assert done.exit_code == 0, done.stderr
    kept = {name: first[name] for name in ("model", "messages", "temperature", "max_tokens", "top_p", "tools")}
    prompt = {name: second[name] for name in ("model", "prompt", "max_tokens", "stop")}
    inside, more = BODIES[style], {} if style == "flat" else ALONE
    assert server.requests == [
        kept | {"max_tokens": 1} | inside({"lz_penalty": -1}),  # has it the penalty?
        kept | inside(OFF | more),
        kept | inside(GUARDED | more),
        prompt | inside(OFF | more),
        prompt | inside(GUARDED | more),
    ]
    assert server.paths == ["/v1/chat/completions"] * 3 + ["/v1/completions"] * 2


def test_fields_of_others_stay_and_settings_of_the_log_go(tmp_path):
    line = chat(
        "one", vllm_xargs={"other": 1, "lz_preset": "paper"}, custom_params={"lz_penalty": 3}, lz_preset="paper"
    )
    with serve(echo) as server:
        options = (
            "--style",
            "vllm",
            "--penalty",
            "paper:0.3,window_size=64",
            "--set",
            "temperature=0.5",
            "-m",
            "other",
        )
        assert replay(stored(tmp_path, line), server.url, *options, "--set", "stop=.", "--json").exit_code == 0
    _, without, penalised = server.requests
    own = {"other": 1} | ALONE
    assert without == chat("one", model="other", temperature=0.5, stop=".", vllm_xargs=own | {"lz_penalty": 0})
    assert penalised["vllm_xargs"] == own | {"lz_preset": "paper", "lz_penalty": 0.3, "lz_window_size": 64}
    assert "custom_params" not in penalised


@pytest.mark.parametrize("style", BODIES)
def test_the_fields_of_a_policy_are_sent_as_they_are(tmp_path, style):
    fields = {"lz_policy": "default", "lz_code": "failsafe", "lz_stop_copies": 20}
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps(fields))
    with serve(echo) as server:
        done = replay(stored(tmp_path, chat("one")), server.url, "--style", style, "--policy", str(policy))
        assert done.exit_code == 0, done.stderr
    more = {} if style == "flat" else ALONE
    assert server.requests[1:] == [chat("one") | BODIES[style](sent) for sent in (OFF | more, more | fields)]


def test_a_policy_ends_a_loop_of_the_real_server(server, tmp_path):
    policy = tmp_path / "policy.json"
    policy.write_text('{"lz_end_thinking_copies": 5, "lz_stop_copies": 6}')  # no penalty, only a ladder
    prompt = bundled_model.prompts()[0]
    line = {"model": str(bundled_model.path()), "prompt": prompt, "max_tokens": 120, "temperature": 0}
    out = tmp_path / "out.jsonl"
    done = replay(stored(tmp_path, line), server, "--policy", str(policy), "--out", str(out))
    assert done.exit_code == 0, done.stderr
    row = json.loads(out.read_text().splitlines()[1])
    assert row["without"]["finish"] == "length"
    assert row["with"]["finish"] == "repetition"
    assert row["without"]["text"].startswith(row["with"]["text"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "must be an object of lz_"),
        ("{", "cannot be read as JSON"),
        ("[" * 100_000, "cannot be read as JSON"),
        ("{}", "no penalty in these fields"),
        ('{"lz_penalty": 0}', "no penalty in these fields"),
        ('{"default": {"lz_policy": "default"}}', "default = .*: unknown field"),
        ('{"lz_polcy": "default"}', "lz_polcy = 'default': unknown field"),
        ('{"lz_policy": "default", "lz_shadow": 1}', "shadow mode changes no answer"),
        (" " * (1 << 20) + "{}", "give a shorter file"),
    ],
)
def test_files_that_are_no_policy(tmp_path, text, message):
    policy = tmp_path / "policy.json"
    policy.write_text(text)
    with pytest.raises(LZPenaltyError, match=message):
        replay(stored(tmp_path, chat("one")), "http://localhost:1", "--policy", str(policy))


def test_a_penalty_and_a_policy_exclude_each_other(tmp_path):
    with pytest.raises(LZPenaltyError, match="give one of them"):
        replay(stored(tmp_path, chat("one")), "http://localhost:1", "--policy", "x.json", "--penalty", "guarded")
    with pytest.raises(LZPenaltyError, match=r"--policy .*absent.json: cannot be read"):
        replay(stored(tmp_path, chat("one")), "http://localhost:1", "--policy", str(tmp_path / "absent.json"))


def test_the_key_is_sent_and_never_shown(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-secret-123")
    with serve(lambda body, number: (400, {"error": {"message": "bad key sk-secret-123\x1b[31m"}})) as server:
        out = tmp_path / "out.jsonl"
        done = replay(stored(tmp_path, chat("one")), server.url, "--key-variable", "MY_KEY", "--out", str(out))
    assert server.headers[0]["authorization"] == "Bearer sk-secret-123"
    assert done.exit_code == 3
    assert "bad key ***" in done.stderr
    assert "\x1b" not in done.stderr
    assert "secret" not in done.output + out.read_text()


def test_compressed_logs(tmp_path):
    log = tmp_path / "log.jsonl.gz"
    log.write_bytes(gzip.compress(json.dumps(chat("x")).encode()))
    with serve(echo) as server:
        assert replay(log, server.url).exit_code == 0


# ---------------------------------------------------------------- what is counted


def test_every_count(tmp_path):
    loop = "and so on " * 40
    said = {
        "a loop": (loop, "done."),
        "a new loop": ("done.", loop),
        "lost": ("Answer: 4", "Answer: 5"),
        "won": ("Answer: 5", "Answer: 4"),
        "kept": ("Answer: 4", "so, Answer: 4"),
        "same": ("Answer: 3", "Answer: 3"),
    }
    log = stored(
        tmp_path,
        *({"prompt": name, "model": "m", "temperature": 0, "right": 4} for name in said),
        chat("x") | {"temperature": 1},
    )

    def say(question, on):
        return said.get(question, ("?", "?"))[on]

    with serve(penalty_server(say)) as server:
        done = replay(log, server.url, "--expected", "right", "--pattern", r"Answer: (\d)", "--json")
        shown = replay(log, server.url, "--expected", "right", "--compare", "number")
    assert done.exit_code == 0
    found = counts(done)
    assert found["replayed"] == 7
    assert (found["loops_broken"], found["loops_made"], found["changed"], found["sampled"]) == (1, 1, 5, 1)
    assert (found["checked"], found["lost"], found["won"], found["p_value"]) == (6, 1, 1, 1.0)
    assert found["without"] == {
        "loops": 1,
        "wasted": len(loop) - 10,
        "cut_off": 0,
        "right": 2,
        "tokens": 120 + 1 + 2 * 4 + 10,
    }
    assert found["with_penalty"]["tokens"] == 1 + 120 + 2 * 4 + 1 + 10
    assert found["tokens_saved"] == -1
    assert "loops broken 1 new loops 1" in " ".join(shown.stdout.split())
    assert "6 answers could be checked" in shown.stdout
    assert "1 requests sample" in shown.stdout


def test_expected_answers_that_no_line_has(tmp_path):
    lines = [chat("x") | {"answer": "4"}, b"no JSON", {"body": chat("y")}]
    log = stored(tmp_path, *lines)
    with serve(echo) as server:
        with pytest.raises(
            LZPenaltyError, match=r"'anwser': 0 of 2 .* \(its fields: model, messages, temperature, answer\)"
        ):
            replay(log, server.url, "--expected", "anwser")
        assert not server.requests
        done = replay(log, server.url, "--expected", "body.model", "--compare", "number")
    assert "0 answers could be checked: the others have nothing to compare with" in done.stdout


def test_reasoning_and_tool_calls_are_part_of_the_answer(tmp_path):
    loop = "and so on " * 40

    def reply(body, number):
        if settings(body).get("lz_penalty", 0) < 0:
            return 400, {"detail": "lz_penalty = -1"}
        body_out = answer(None)
        message = body_out["choices"][0]["message"]
        if settings(body) == OFF:
            message["reasoning_content"] = loop
        else:
            message["tool_calls"] = [{"id": str(number), "function": {"name": "add", "arguments": "{}"}}]
        return 200, body_out

    out = tmp_path / "out.jsonl"
    with serve(reply) as server:
        found = counts(replay(stored(tmp_path, chat("x")), server.url, "--json", "--out", str(out)))
    assert (found["loops_broken"], found["changed"]) == (1, 1)
    row = json.loads(out.read_text().splitlines()[1])
    assert row["with"]["text"] == '{"arguments": "{}", "name": "add"}'
    assert row["without"]["reasoning"] == loop


def test_answers_without_usage_are_not_counted_in_tokens(tmp_path):
    def reply(body, _):
        status = 400 if settings(body).get("lz_penalty", 0) < 0 else 200
        return status, answer("hello", usage=False)

    with serve(reply) as server:
        found = counts(replay(stored(tmp_path, chat("x")), server.url, "--json"))
        assert "whose answers the server counted" in replay(stored(tmp_path, chat("x")), server.url).stdout
    assert (found["counted"], found["tokens_saved"], found["replayed"]) == (0, 0, 1)


# ---------------------------------------------------------------- checkers


@pytest.mark.parametrize(
    ("checker", "text", "expected", "right"),
    [
        (Checker(), " yes\n", "yes", True),
        (Checker(), "Yes", "yes", False),
        (Checker("contains"), "It is Paris.", "Paris", True),
        (Checker("contains"), "<think>Paris?</think>Rome.", "Paris", False),
        (Checker("number"), "so 1,234.50 in all", "1234.5", True),
        (Checker("number"), "12 and 13", "12", False),
        (Checker("number"), "none", "12", False),
        (Checker("number"), "12", "twelve", None),
        (Checker("exact", r"\((\w)\)"), "(A) or rather (B)", "B", True),
        (Checker("exact", r"\((\w)\)"), "B", "B", False),
        (Checker("exact", "ok", expects=False), "all ok", None, True),
        (Checker("exact", "ok", expects=False), "no", None, False),
        (Checker("exact", "ok"), "all ok", None, None),
        (Checker(), "__import__('os').system('exit 1')", "0", False),
    ],
)
def test_checkers(checker, text, expected, right):
    assert checker.right(text, expected) is right


def test_a_checker_needs_something_to_check():
    with pytest.raises(LZPenaltyError, match="needs expected answers or a pattern"):
        Checker(expects=False)


def test_chance():
    assert Summary().p_value is None
    assert Summary(lost=5, won=5).p_value == 1.0
    assert Summary(lost=10, won=0).p_value == pytest.approx(2 / 1024)
