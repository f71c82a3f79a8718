"""What happens after a loop: continue, ask again, or only watch."""

import json

import pytest

from lz_penalty.guard._settings import INSTRUCTION
from tests.support.fake_upstream import LOOP, event_texts
from tests.support.guarding import PATHS, events, running

QUESTION = [{"role": "user", "content": "Why?"}]
AGAIN = {"words": 3, "seed": 9}


def asked(guard, user, do="stream", then=AGAIN, **how):
    more = {"messages": QUESTION, "prompt": "Why?", "temperature": 0}
    return guard.body(user, do=do, copies=300, words=4, then={"do": do} | then, more=more, **how)


def begin(**how):
    return "".join(event_texts({"words": 4} | how))


@pytest.mark.parametrize("route", PATHS)
def test_watching_changes_nothing(guard, route):
    for do in ("stream", "whole"):
        user = f"watch-{route}-{do}"
        before = guard.metric('lz_guard_loops_total{action="watch"')
        reply = guard.post(route, asked(guard, user, do), "watch")
        assert reply.content == guard.record(user)["sent"]
        assert "x-lz-guard" not in reply.headers
        assert guard.metric('lz_guard_loops_total{action="watch"') == before + 1
        assert [one for one in guard.lines() if one.get("outcome") == "watched"][-1]["loops"]


@pytest.mark.parametrize("action", ["continue", "retry"])
def test_a_chat_stream_continues_after_the_cut(guard, action):
    got = guard.post("chat", asked(guard, f"go-{action}"), action).content
    record = guard.record(f"go-{action}")
    assert record["times"] == 2
    body = record["bodies"][1]
    assert body["messages"] == [
        *QUESTION,
        {"role": "assistant", "content": begin() + LOOP},
        {"role": "user", "content": INSTRUCTION},
    ]
    assert (body["temperature"], body.get("frequency_penalty")) == ((0.7, 0.5) if action == "retry" else (0, None))
    assert got.endswith(record["sent"])  # the second stream, byte for byte
    (seam,) = [one for one in events(got) if "lz_guard" in one]
    assert (seam["lz_guard"]["action"], seam["choices"][0]["finish_reason"]) == (action, None)
    assert got.count(b"[DONE]") == 1


def test_a_completion_continues_its_prompt(guard):
    guard.post("completions", asked(guard, "prompt"), "continue")
    assert guard.record("prompt")["bodies"][1]["prompt"] == "Why?" + begin() + LOOP


def test_a_second_loop_is_cut(guard):
    got = guard.post("chat", asked(guard, "twice", then={"copies": 500}), "continue").content
    assert [one["lz_guard"]["action"] for one in events(got) if "lz_guard" in one] == ["continue", "cut"]
    assert guard.record("twice")["times"] == 2


@pytest.mark.parametrize(
    "then", [{"do": "plain", "status": 400, "text": "no"}, {"do": "reset"}, {"do": "whole"}], ids=lambda one: one["do"]
)
def test_without_a_second_answer_the_first_is_cut(guard, then):
    got = guard.post("chat", asked(guard, f"fails-{then['do']}", then=then), "continue").content
    assert events(got)[-1]["lz_guard"]["action"] == "cut"
    whole = guard.post("chat", asked(guard, f"whole-{then['do']}", "whole", then={**then, "do": "reset"}), "retry")
    assert whole.json()["lz_guard"]["action"] == "cut"
    assert whole.json()["choices"][0]["message"]["content"] == begin() + LOOP


def test_what_cannot_be_continued_is_cut(guard):
    for user, route, more, how in (
        ("tool", "chat", {}, {"channel": "tool"}),
        ("items", "responses", {}, {}),
        ("ids", "completions", {"prompt": [1, 2]}, {}),
    ):
        got = guard.post(route, asked(guard, f"no-{user}", **how) | more, "continue").content
        assert events(got)[-1]["lz_guard"]["action"] == "cut"
        assert guard.record(f"no-{user}")["times"] == 1


@pytest.mark.parametrize("route", PATHS)
def test_a_second_answer_replaces_the_first(guard, route):
    reply = guard.post(route, asked(guard, f"replaced-{route}", "whole"), "retry")
    first, second = guard.record(f"replaced-{route}")["bodies"]
    assert second["temperature"] == 0.7
    assert {name: value for name, value in second.items() if name not in ("temperature", "frequency_penalty")} == {
        name: value for name, value in first.items() if name != "temperature"
    }
    want = json.loads(guard.record(f"replaced-{route}")["sent"])
    got = reply.json()
    assert got.pop("lz_guard") == json.loads(reply.headers["x-lz-guard"])
    assert got == want
    assert json.loads(reply.headers["x-lz-guard"])["action"] == "retry"


def test_a_whole_answer_is_continued_in_one_message(guard):
    reply = guard.post("chat", asked(guard, "joined", "whole"), "continue").json()
    assert reply["choices"][0]["message"]["content"] == begin() + LOOP + begin(**AGAIN)
    assert reply["usage"] == {"prompt_tokens": 10, "completion_tokens": 200, "total_tokens": 210}


def test_the_plug_in_is_found_and_used(guard):
    """The upstream refuses a strength of -1 with the allowed range, so the second request has `lz_*` fields."""
    guard.post("chat", asked(guard, "plugin", "whole", plugin=1), "retry")
    second = guard.record("plugin")["bodies"][1]
    assert second["lz_preset"] == "guarded"
    assert second["temperature"] == 0
    assert "lz_preset" not in guard.record("replaced-chat")["bodies"][1]


def test_routes_file_environment_and_flags(tmp_path, upstream):
    file = tmp_path / "guard.toml"
    lines = ('action = "watch"', 'finish_reason = "length"', "min_length = 50", "min_length_data = 60")
    file.write_text("\n".join([*lines, "[routes]", 'completions = "cut"']))
    options = ("--config", str(file), "--min-length", "1000", "--min-length-data", "1000", "--no-allow-header")
    variables = {"LZ_PENALTY_GUARD_MIN_LENGTH": "500", "LZ_PENALTY_GUARD_FINISH_REASON": "repetition"}
    with running(tmp_path, upstream, *options, **variables) as guard:
        got = guard.post("chat", guard.body("w", copies=100), "cut").content  # the header is not allowed
        assert got == guard.record("w")["sent"]
        got = guard.post("completions", guard.body("c", copies=100)).content
        assert events(got)[-1]["choices"][0]["finish_reason"] == "repetition"
        assert events(got)[-1]["lz_guard"]["copies"] == pytest.approx(1_000 / len(LOOP), abs=1)


def test_vllm_continues_the_message_itself(tmp_path, upstream):
    with running(tmp_path, upstream, "--continue-final-message", "--plugin", "vllm") as guard:
        guard.post("chat", asked(guard, "final"), "retry")
        body = guard.record("final")["bodies"][1]
    assert body["messages"] == [*QUESTION, {"role": "assistant", "content": begin() + LOOP}]
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
    assert body["vllm_xargs"] == {"lz_preset": "guarded"}
