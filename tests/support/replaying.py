"""Helpers for tests of `lz-penalty replay`: logs, a server that answers as the test says, and a check of real servers."""

import json

from typer.testing import CliRunner

from lz_penalty import LZPenaltyConfig, bundled_model
from lz_penalty.cli import app
from tests.support.judge_server import answer

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


def check_replay(folder, address, style, model):
    """Check that the server's replies loop without the penalty and do not loop with it."""
    prose = [{"prompt": text, "max_tokens": 120} for text in bundled_model.prompts()[:2]]
    question = {"body": {"messages": [{"role": "user", "content": "What is 2 + 3?"}], "max_tokens": 100}, "answer": "5"}
    log = stored(folder, *prose, question)
    options = ["--style", style, "--model", model, "--set", "temperature=0", "--expected", "answer", "--json"]
    done = CliRunner().invoke(app, ["replay", str(log), "-e", address, *options, "--pattern", "Answer: (.*)"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["replayed"] == found["counted"] == 3
    assert found["without"]["loops"] == found["loops_broken"] >= 1
    assert found["with_penalty"]["loops"] == found["sampled"] == 0
    assert found["checked"] == 1
    assert found["changed"] >= 2
