"""`lz-penalty replay` over HTTP: a real server with the bundled model, and a recorder that shows what is sent."""

import gzip
import json
import socket
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from lz_penalty import LZPenaltyConfig, LZPenaltyError, bundled_model
from lz_penalty.bundled_model import problems
from lz_penalty.cli import app
from lz_penalty.engines.transformers import LZPenaltyLogitsProcessor
from lz_penalty.evaluation.measures import Checker
from lz_penalty.evaluation.replay.pairs import Summary
from lz_penalty.evaluation.replay.running import MOST_UNREACHABLE
from tests.support.commands import run
from tests.support.greedy import generate
from tests.support.judge_server import JudgeServer, answer, serve
from tests.support.processes import serving

pytest.importorskip("fastapi")
GUARDED = LZPenaltyConfig.guarded().to_request()
OFF = {"lz_penalty": 0}
ALONE = {"lz_end_thinking_copies": "none", "lz_stop_copies": "none", "lz_shadow": 0}  # nothing of a server's default


def replay(log, url, *options):
    """Exit code and output of the command; bad input raises."""
    done = CliRunner().invoke(app, ["replay", str(log), "--endpoint", url, "--retries", "0", *options])
    if isinstance(done.exception, Exception):
        raise done.exception
    return done


def counts(done):
    return json.loads(done.stdout)


def chat(text, **more):
    return {"model": "m", "messages": [{"role": "user", "content": text}], "temperature": 0} | more


def stored(folder, *lines):
    file = folder / "log.jsonl"
    file.write_bytes(
        b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)
    )
    return file


def settings(body):
    """The settings of the penalty in a request, wherever they are."""
    places = [body, body.get("vllm_xargs", {}), body.get("custom_params", {})]
    return {name: value for place in places for name, value in place.items() if name.startswith("lz_")}


def asked(body):
    return body["messages"][0]["content"] if "messages" in body else body["prompt"]


def penalty_server(say):
    """A reply of a server that has the penalty: `say(question, whether it is on)` is the text."""

    def reply(body, _):
        given = settings(body)
        if given.get("lz_penalty", 0) < 0:
            return 400, {"error": {"message": "lz_penalty = -1: must be a finite number from 0 to 100."}}
        text = say(asked(body), given != OFF)
        return 200, answer(text) if "messages" in body else completion(text)

    return reply


def completion(text):
    usage = {"prompt_tokens": 3, "completion_tokens": len(text.split())}
    return {
        "object": "text_completion",
        "choices": [{"index": 0, "text": text, "finish_reason": "stop"}],
        "usage": usage,
    }


echo = penalty_server(lambda question, on: f"{question}, {'on' if on else 'off'}")


# ---------------------------------------------------------------- a real server


@pytest.fixture(scope="module")
def server():
    command = ["lz_penalty.engines.transformers", "serve", "--device", "cpu", "--dtype", "float32"]
    with serving(command, {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}) as address:
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
    assert "broken, 0 new" in shown.stdout
    assert "0 lost, 0 won" in shown.stdout


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
    assert penalised["vllm_xargs"] == own | {"lz_penalty": 0.3, "lz_window_size": 64}
    assert "custom_params" not in penalised


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
    assert "1 broken, 1 new" in shown.stdout
    assert "6 answers could be checked" in shown.stdout
    assert "1 requests sample" in shown.stdout


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


# ---------------------------------------------------------------- what goes wrong


def test_malformed_lines_are_named_and_the_rest_goes_on(tmp_path):
    log = stored(
        tmp_path,
        b"{not json",
        b"\xff\xfe",
        [1, 2],
        {"text": "no request"},
        {"body": {"model": "m", "input": "?"}},
        {"model": "m", "prompt": ["a", "b"]},
        {"prompt": "no model"},
        b"",
        chat("good"),
    )
    out = tmp_path / "out.jsonl"
    with serve(echo) as server:
        done = replay(log, server.url, "--json", "--out", str(out))
    assert done.exit_code == 3
    assert (counts(done)["replayed"], counts(done)["problems"]) == (1, 7)
    for line, word in enumerate(
        ["not JSON", "not UTF-8", "it is not an object", "its fields: text", "neither messages nor"], 1
    ):
        assert any(f"log.jsonl:{line}:" in shown and word in shown for shown in done.stderr.splitlines()), done.stderr
    rows = [json.loads(line) for line in out.read_text().splitlines()[1:]]
    assert [row["line"] for row in rows] == [1, 2, 3, 4, 5, 6, 7, 9]
    assert ["error" in row for row in rows] == [True] * 7 + [False]


def test_errors_of_the_server_are_named_and_asked_again_only(tmp_path):
    log, out = stored(tmp_path, *(chat(f"q{i}") for i in range(6))), tmp_path / "out.jsonl"

    def broken(body, number):
        odd = {
            "q1": (400, {"error": {"message": "too long"}}),
            "q2": (500, {"error": {"message": "internal"}}),
            "q3": (200, "<html>hello</html>"),
            "q4": (200, {"choices": []}),
        }
        return odd.get(asked(body)) or echo(body, number)

    with serve(broken) as server:
        done = replay(log, server.url, "--json", "--out", str(out))
    assert done.exit_code == 3
    assert (counts(done)["replayed"], counts(done)["problems"]) == (2, 4)
    for line, word in ((2, "status 400: too long"), (3, "status 500"), (4, "malformed"), (5, "malformed")):
        assert any(f":{line}:" in shown and word in shown for shown in done.stderr.splitlines()), done.stderr
    with serve(echo) as server:
        done = replay(log, server.url, "--json", "--out", str(out))
    assert done.exit_code == 0
    assert counts(done)["replayed"] == 6
    assert {asked(body) for body in server.requests} == {"q1", "q2", "q3", "q4"}
    assert len(server.requests) == 1 + 2 * 4
    with serve(echo) as server:
        assert counts(replay(log, server.url, "--json", "--out", str(out)))["replayed"] == 6
    assert server.requests == []


def test_busy_servers_are_asked_again(tmp_path):
    def busy(body, number):
        return (429 if number == 1 else 503, {"error": {"message": "busy"}}) if number in (1, 2) else echo(body, number)

    with serve(busy) as server:
        done = CliRunner().invoke(
            app, ["replay", str(stored(tmp_path, chat("x"))), "-e", server.url, "--json", "--retries", "3"]
        )
    assert done.exit_code == 0, done.stderr
    assert len(server.requests) == 5
    assert server.times[3] - server.times[1] > 0.3  # pauses


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_dead_endpoint_is_one_error(tmp_path):
    url = f"http://127.0.0.1:{free_port()}"
    done = run("replay", stored(tmp_path, chat("x")), "--retries", "0", "--endpoint", url)
    assert done.returncode == 2
    assert done.stderr.startswith(f"lz-penalty: no answer from {url}/v1: ")
    assert "Traceback" not in done.stderr


def test_a_server_that_dies_loses_nothing(tmp_path):
    total, before = MOST_UNREACHABLE + 30, 5
    log, out = stored(tmp_path, *(chat(f"q{i}") for i in range(total))), tmp_path / "out.jsonl"

    def dying(body, number):
        if number > 2 * before:
            raise ConnectionResetError
        return echo(body, number)

    with serve(dying) as server:
        done = replay(log, server.url, "--json", "--out", str(out), "--concurrency", "1")
    assert len(server.requests) == 1 + 2 * before + MOST_UNREACHABLE  # then it is left alone
    assert done.exit_code == 3
    assert counts(done)["replayed"] == before
    assert "run the command again to continue" in out.read_text()
    with serve(echo) as server:
        again = replay(log, server.url, "--json", "--out", str(out))
    assert counts(again)["replayed"] == total
    assert len(server.requests) == 1 + 2 * (total - before)


def test_a_server_without_the_penalty_is_seen(tmp_path):
    log = stored(tmp_path, chat("x"))
    with serve(lambda body, number: (200, answer("hello"))) as server:
        with pytest.raises(LZPenaltyError, match=r"accepts lz_penalty = -1 in the style 'flat'.*--style"):
            replay(log, server.url)
        assert replay(log, server.url, "--no-probe").exit_code == 0


def test_killed_and_run_again(tmp_path):
    total, log, out = 40, stored(tmp_path, *(chat(f"q{i}") for i in range(40))), tmp_path / "out.jsonl"
    with JudgeServer(echo, delay=0.05).running() as server:
        command = [sys.executable, "-m", "lz_penalty", "replay", str(log), "-e", server.url, "--out", str(out)]
        process = subprocess.Popen([*command, "--concurrency", "2"])
        while len(server.requests) < 25:
            assert process.poll() is None
            time.sleep(0.02)
        process.kill()
        process.wait()
        kept = out.read_text().count('"without"')
        assert 5 < kept < total
        before = len(server.requests)
        assert counts(replay(log, server.url, "--json", "--out", str(out)))["replayed"] == total
    assert len(server.requests) - before == 1 + 2 * (total - kept)


def test_interrupted_in_the_middle_of_a_line(tmp_path):
    log, out = stored(tmp_path, *(chat(f"q{i}") for i in range(4))), tmp_path / "out.jsonl"
    with serve(echo) as server:
        replay(log, server.url, "--out", str(out))
    whole = out.read_bytes()
    out.write_bytes(whole[:-40])
    with serve(echo) as server:
        assert counts(replay(log, server.url, "--json", "--out", str(out)))["replayed"] == 4
    assert {asked(body) for body in server.requests} == {"q3"}
    assert out.read_bytes() == whole


def test_the_same_file_with_one_worker_and_with_many(tmp_path):
    log = stored(tmp_path, *(chat(f"q{i}") for i in range(30)))
    files = []
    for concurrency in ("1", "16"):
        files.append(tmp_path / concurrency)
        with JudgeServer(echo, delay=0.01).running() as server:
            replay(log, server.url, "--out", str(files[-1]), "--concurrency", concurrency, "--retries", "4")
    assert server.most_at_once > 4
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_changed_log_is_asked_anew(tmp_path):
    out = tmp_path / "out.jsonl"
    with serve(echo) as server:
        replay(stored(tmp_path, chat("a"), chat("b")), server.url, "--out", str(out))
        replay(stored(tmp_path, chat("a"), chat("c"), chat("a")), server.url, "--out", str(out))
    assert [asked(body) for body in server.requests[5:]].count("a") == 2  # the third line; the probe asks about c
    rows = [json.loads(line) for line in out.read_text().splitlines()[1:]]
    assert [row["without"]["text"] for row in rows] == ["a, off", "c, off", "a, off"]


def test_compressed_logs(tmp_path):
    log = tmp_path / "log.jsonl.gz"
    log.write_bytes(gzip.compress(json.dumps(chat("x")).encode()))
    with serve(echo) as server:
        assert replay(log, server.url).exit_code == 0


BAD = {
    "other settings": (("--penalty", "paper"), "was made with other settings"),
    "unknown style": (("--style", "llama"), "style = 'llama'"),
    "no LZ penalty": (("--penalty", "dry:0.8"), "must be an LZ penalty"),
    "no value": (("--set", "temperature"), "NAME=VALUE"),
    "settings as changes": (("--set", "lz_penalty=0.3"), "give --penalty"),
    "comparison without expected": (("--compare", "number"), "needs --expected"),
    "unknown comparison": (("--compare", "python", "--expected", "a"), "comparison = 'python'"),
    "bad pattern": (("--pattern", "("), "a regular expression"),
    "bad criterion": (("-c", "mood"), "criterion = 'mood'"),
    "concurrency": (("--concurrency", "0"), "concurrency = 0"),
    "endpoint": (("--endpoint", "localhost:8000"), "an address such as"),
    "path": (("--request", "a..b"), "field = 'a..b'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(tmp_path, name):
    options, message = BAD[name]
    log, out = stored(tmp_path, chat("x")), tmp_path / "out.jsonl"
    out.write_text(
        json.dumps({"settings": {"penalty": GUARDED, "style": "sglang", "model": None, "changes": {}}}) + "\n"
    )
    with pytest.raises(LZPenaltyError, match=message):
        replay(log, "http://127.0.0.1:1/v1", "--out", str(out), *options)


def test_files_that_are_no_results(tmp_path):
    log, url = stored(tmp_path, chat("x")), "http://127.0.0.1:1/v1"
    other = tmp_path / "other"
    other.write_text("hello\n")
    with pytest.raises(LZPenaltyError, match="is no file of a replay"):
        replay(log, url, "--out", str(other))
    assert other.read_text() == "hello\n"
    with pytest.raises(LZPenaltyError, match="is the log itself"):
        replay(log, url, "--out", str(log))
    with pytest.raises(LZPenaltyError, match="cannot be written"):
        replay(log, url, "--out", str(tmp_path / "no" / "folder"))
    with pytest.raises(LZPenaltyError, match="file not found"):
        replay(tmp_path / "missing.jsonl", url)


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
