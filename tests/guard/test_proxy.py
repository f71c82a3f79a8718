"""A guard between a client and an upstream that records: healthy answers are untouched, loops are cut."""

import asyncio
import json
import socket
import time

import httpx
import pytest

from lz_penalty.guard import Thresholds
from tests.support import quick_or_deep
from tests.support.fake_upstream import LOOP, WORDS
from tests.support.guarding import KEY, PATHS, events

CUT = Thresholds()
STREAMS = quick_or_deep(32, 200)


def text_of(route, found):
    if route == "responses":
        return "".join(one.get("delta", "") for one in found if one["type"].endswith(".delta"))
    choices = [choice for one in found for choice in one["choices"]]
    return "".join(one["text"] if route == "completions" else one["delta"].get("content") or "" for one in choices)


def split_at_cut(got, sent):
    """What upstream sent, up to the end of an event, and what the guard wrote after it."""
    common = got[: next((i for i, (one, other) in enumerate(zip(got, sent, strict=False)) if one != other), len(got))]
    end = max(common.rfind(b"\n\n") + 2, common.rfind(b"\r\n\r\n") + 4)
    return got[:end], got[end:]


def test_many_concurrent_streams(guard):
    """Healthy streams arrive byte for byte; of the others, exactly the bytes up to the cut, and our own ending."""

    async def one(client, number):
        route = list(PATHS)[number % 3]
        how = {"seed": number, "words": 60, "split": number}
        how |= {"copies": 2_000 // len(LOOP) * 20} if number % 4 == 0 else {"copies": 1_900 // len(LOOP)}
        body = guard.body(f"many-{number}", more={"stream": True, "prompt": "p"}, **how)
        reply = await client.post(PATHS[route], json=body)
        return number, route, reply.status_code, reply.content

    async def run():
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=guard.address, limits=limits, timeout=60, trust_env=False) as client:
            return await asyncio.gather(*(one(client, number) for number in range(STREAMS)))

    looped = 0
    for number, route, status, got in asyncio.run(run()):
        sent = guard.record(f"many-{number}")["sent"]
        assert status == 200
        if number % 4:
            assert got == sent
            continue
        looped += 1
        passed, ending = split_at_cut(got, sent)
        about = events(ending)[-1]["lz_guard"]
        assert len(events(ending)) == (2 if route == "responses" else 1)
        assert about["unit"] in LOOP * 2
        assert about["copies"] * len(LOOP) == pytest.approx(CUT.min_length, abs=8)
        loop = text_of(route, events(passed))[about["onset"] :]
        assert CUT.min_length <= len(loop) < CUT.min_length + 8  # the event with which the loop counts is passed on
    assert looped == STREAMS // 4


@pytest.mark.parametrize("route", PATHS)
def test_a_healthy_stream_keeps_its_headers_and_is_not_delayed(guard, route):
    body = guard.body(f"slow-{route}", words=4, delay=0.1)
    begin, times, got = time.monotonic(), [], b""
    with httpx.stream("POST", guard.address + PATHS[route], json=body, timeout=30, trust_env=False) as reply:
        for chunk in reply.iter_raw():
            times.append(time.monotonic() - begin)
            got += chunk
    assert reply.headers["x-request-id"] == "77"
    assert "connection" not in reply.headers or reply.headers["connection"] != "close"
    assert got == guard.record(f"slow-{route}")["sent"]
    assert times[-1] - times[0] > 0.3  # the events arrive one by one


@pytest.mark.parametrize("route", PATHS)
def test_a_loop_is_cut_and_upstream_is_closed(guard, route):
    user = f"loop-{route}"
    body = guard.body(user, copies=3_000, words=3, delay=0.001, more={"stream_options": {"include_usage": True}})
    got = guard.post(route, body).content
    record = guard.left(user)
    assert record["sent_size"] < 1.8 * len(got)
    assert "complete" not in record
    last = events(got)[-1]
    assert last["lz_guard"]["action"] == "cut"
    assert last["lz_guard"]["criterion"] == "tandem"
    assert last["lz_guard"]["channel"] == "content"
    if route == "responses":
        assert last["type"] == "response.completed"
        (item,) = last["response"]["output"]
        assert item["content"][0]["text"] == text_of(route, events(got))
        numbers = [one["sequence_number"] for one in events(got)]
        assert numbers == list(range(len(numbers)))
    else:
        assert last["choices"][0]["finish_reason"] == "stop"
        assert got.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("channel", ["reasoning_content", "reasoning", "tool"])
def test_channels_are_watched_apart(guard, channel):
    got = guard.post("chat", guard.body(f"in-{channel}", copies=1_000, channel=channel)).content
    assert events(got)[-1]["lz_guard"]["channel"] == channel.removesuffix("_content")


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate", "/api/v1/generate"])
def test_paths_that_are_not_of_the_openai_api_are_not_watched(guard, path):
    """Such as the own API of Ollama and koboldcpp: docs/works-with.md says so."""
    body = guard.body(path, copies=1_000)
    got = httpx.post(guard.address + path, json=body, timeout=30, trust_env=False).content
    record = guard.record(path)
    assert record["complete"]
    assert got == record["sent"]
    assert len(got) > 1_000 * len(LOOP)


def test_data_must_be_longer_than_words(guard):
    for unit, length in ((" 0,", CUT.min_length_data), ("and so on, ", CUT.min_length)):
        got = guard.post("chat", guard.body("data", copies=4_000, unit=unit, words=0)).content
        about = events(got)[-1]["lz_guard"]
        assert about["copies"] * len(unit) == pytest.approx(length, abs=len(unit))


def test_a_choice_that_loops_does_not_end_the_others(guard):
    body = guard.body("two", copies=300, n=2, words=5, more={"n": 2})
    got = guard.post("chat", body).content
    choices = [(one["choices"][0]["index"], one) for one in events(got)]
    sent = [one for one in events(guard.record("two")["sent"]) if one["choices"][0]["index"] == 1]
    assert [one for index, one in choices if index == 1] == sent
    looped = [one for index, one in choices if index == 0]
    assert looped[-1]["choices"][0]["finish_reason"] == "stop"
    assert looped[-1]["lz_guard"]["choice"] == 0
    assert len(looped) < 350
    assert got.endswith(b"data: [DONE]\n\n")
    assert got.count(b"[DONE]") == 1


@pytest.mark.parametrize("route", PATHS)
def test_whole_answers(guard, route):
    healthy = guard.post(route, guard.body(f"whole-{route}", do="whole", words=200))
    assert healthy.content == guard.record(f"whole-{route}")["sent"]
    assert "x-lz-guard" not in healthy.headers
    looped = guard.post(route, guard.body(f"whole-loop-{route}", do="whole", words=9, copies=300))
    about = json.loads(looped.headers["x-lz-guard"])
    assert looped.json()["lz_guard"] == about
    assert about["unit"] == LOOP
    assert looped.text.count(LOOP) == 2  # in the text and in the field


def test_a_whole_answer_may_end_in_a_short_loop(guard):
    """12 copies at the end of an answer are a loop; followed by something else they are not."""
    ends = guard.post("chat", guard.body("ends", do="whole", words=9, copies=12))
    goes_on = guard.post("chat", guard.body("goes on", do="whole", words=9, copies=12, after=[" But then it ended."]))
    assert "x-lz-guard" in ends.headers
    assert ends.json()["choices"][0]["message"]["content"].endswith(LOOP)
    assert goes_on.content == guard.record("goes on")["sent"]


def test_everything_else_passes(guard):
    data = bytes(range(256)) * 5_000
    with httpx.Client(trust_env=False, timeout=30) as client:
        reply = client.put(guard.address + "/v1/files?purpose=x%2Fy", content=data, headers={"x-a": "1"})
        assert (reply.status_code, reply.text) == (200, "ok")
        record = guard.record("/v1/files?purpose=x%2Fy")
        assert (record["method"], record["size"], record["headers"]["x-a"]) == ("PUT", len(data), "1")
        chunked = client.post(guard.address + "/v1/audio", content=iter([data, data]))
        assert chunked.status_code == 200
        assert guard.record("/v1/audio")["size"] == 2 * len(data)
        assert client.get(guard.address + "/v1/models").text == "ok"
        refused = client.post(guard.address + "/v1/chat/completions", content=b"not JSON")
        assert refused.text == "ok"  # upstream judges bodies


def test_headers_of_one_hop_stay_there(guard):
    headers = {"connection": "x-private, keep-alive", "x-private": "1", "te": "trailers", "proxy-authorization": "b"}
    headers |= {"accept-encoding": "gzip, br", "x-lz-guard-action": "watch", "cookie": "c=1", "x-kept": "1"}
    httpx.post(guard.address + PATHS["chat"], json=guard.body("hop"), headers=headers, trust_env=False)
    got = guard.record("hop")["headers"]
    assert not {"x-private", "te", "proxy-authorization", "x-lz-guard-action"} & got.keys()
    assert (got["accept-encoding"], got["cookie"], got["x-kept"]) == ("identity", "c=1", "1")
    assert got["host"] == guard.upstream.removeprefix("http://")
    again = guard.post("chat", guard.body("hop-2"))
    assert again.headers["set-cookie"] == "a=b"
    assert "cookie" not in guard.record("hop-2")["headers"]  # nothing is stored


def test_the_key_reaches_upstream_and_nothing_else(guard):
    guard.post("chat", guard.body("key", copies=500))
    assert guard.record("key")["headers"]["authorization"] == f"Bearer {KEY}"
    text = guard.log.read_text() + httpx.get(guard.address + "/metrics", trust_env=False).text
    assert KEY not in text
    assert not [word for word in (*WORDS, LOOP) if len(word) > 5 and word in text]
    (line,) = [one for one in guard.lines() if one["event"] == "request"][-1:]
    assert line["loops"][0]["unit_length"] == len(LOOP)
    assert line["outcome"] == "cut"


def test_compressed_answers_pass_unexamined(guard):
    before = guard.metric('lz_guard_unexamined_total{why="encoded"}')
    body = guard.body("gzip", do="plain", text="x" * 9_000, type="application/json", headers={"content-encoding": "br"})
    with httpx.stream("POST", guard.address + PATHS["chat"], json=body, trust_env=False) as reply:
        assert b"".join(reply.iter_raw()) == b"x" * 9_000
    assert guard.metric('lz_guard_unexamined_total{why="encoded"}') == before + 1


@pytest.mark.parametrize(
    "target",
    ["http://127.0.0.1:1/v1/models", "/v1/../secret", "/v1/%2e%2e/secret", "/v1/%252e%252e/x", "/a\\..\\b", "*"],
)
def test_only_upstream_is_contacted(guard, target):
    host, port = guard.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(f"GET {target} HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n".encode())
        answer = b""
        while part := connection.recv(4096):
            answer += part
    assert answer.startswith(b"HTTP/1.1 400")


def test_redirects_are_not_followed(guard):
    body = guard.body("moved", do="plain", status=302, headers={"location": "http://127.0.0.1:1/"})
    reply = guard.post("chat", body)
    assert (reply.status_code, reply.headers["location"]) == (302, "http://127.0.0.1:1/")
