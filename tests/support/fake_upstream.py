"""An OpenAI-compatible server for the guard's tests, in a process of its own: it records what it sends and can misbehave.

`python -m tests.support.fake_upstream PORT`. The field `model` of a request is a JSON object that says what to answer:
`{"do": "stream", "seed": 3}`. `GET /records` returns what was received and sent, by the request's field `user`.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import random
import socket
import struct
import sys
from collections.abc import AsyncIterator
from typing import Any

WORDS = ("the", "old", "man", "looked", "sea", "said", "für", "Ångström", "漢字", "🙂", "table", "row", "value")
LOOP = " I should check this again."
MOST_RECORDED = 4 * 2**20  # bytes of an answer
RECORDS: dict[str, dict[str, Any]] = {}


def chat_chunk(delta: dict[str, Any], index: int = 0, finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return b"data: " + json.dumps(head | {"choices": [choice]} | more, ensure_ascii=False).encode() + b"\n\n"


def words(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    return [" " + rng.choice(WORDS) + str(rng.randrange(1000)) for _ in range(count)]


def event_texts(how: dict[str, Any]) -> list[str]:
    """Healthy words, and then a loop of `copies` copies."""
    texts = words(how.get("seed", 0), how.get("words", 40))
    loop = how.get("unit", LOOP)
    size = how.get("piece", 7)
    looping = loop * how.get("copies", 0)
    return texts + [looping[i : i + size] for i in range(0, len(looping), size)] + how.get("after", [])


def chat_events(how: dict[str, Any]) -> list[bytes]:
    channel = how.get("channel", "content")
    first = [chat_chunk({"role": "assistant", "content": ""}, index) for index in range(how.get("n", 1))]
    events = list(first)
    for text in event_texts(how):
        call = {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}
        delta: dict[str, Any] = call if channel == "tool" else {channel: text}
        events.append(chat_chunk(delta))
        events += [chat_chunk({"content": f" {other}-{len(events)}"}, other) for other in range(1, how.get("n", 1))]
    events += [chat_chunk({}, index, "stop") for index in range(how.get("n", 1))]
    if how.get("usage"):
        events.append(b'data: {"id":"x","choices":[],"usage":{"total_tokens":9}}\n\n')
    return [*events, b"data: [DONE]\n\n"]


def completion_events(how: dict[str, Any]) -> list[bytes]:
    head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m"}
    texts = [(text, None) for text in event_texts(how)] + [("", "stop")]
    made = [head | {"choices": [{"index": 0, "text": text, "finish_reason": end}]} for text, end in texts]
    return [b"data: " + json.dumps(one).encode() + b"\r\n\r\n" for one in made] + [b"data: [DONE]\r\n\r\n"]


def responses_events(how: dict[str, Any]) -> list[bytes]:
    whole = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "in_progress", "output": []}
    whole |= {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    part = {"type": "output_text", "text": "", "annotations": []}
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    made: list[dict[str, Any]] = [
        {"type": "response.created", "response": whole},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.content_part.added", **place, "part": part},
    ]
    made += [
        {"type": "response.output_text.delta", **place, "delta": text, "logprobs": []} for text in event_texts(how)
    ]
    done = item | {"status": "completed", "content": [part | {"text": "".join(event_texts(how))}]}
    made.append({"type": "response.output_item.done", "output_index": 0, "item": done})
    made.append({"type": "response.completed", "response": whole | {"status": "completed", "output": [done]}})
    numbered = [one | {"sequence_number": number} for number, one in enumerate(made)]
    return [f"event: {one['type']}\ndata: {json.dumps(one)}\n\n".encode() for one in numbered]


def whole_answer(path: str, how: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    text = "".join(event_texts(how))
    if "responses" in path:
        item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
        return {"id": "resp_1", "object": "response", "status": "completed", "output": [item]}
    said = {"message": {"role": "assistant", "content": text}} if "chat" in path else {"text": text}
    choice = {"index": 0, **said, "finish_reason": "length"}
    usage = {"prompt_tokens": 5, "completion_tokens": 100, "total_tokens": 105}
    return {"id": "1", "object": "x", "created": 1, "model": "m", "choices": [choice], "usage": usage}


class Server:
    """Handle one connection after another; the requests of a connection come one at a time."""

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while await self.one(reader, writer):
                pass
        writer.close()

    async def one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ", 2)
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
        data = await _read_body(reader, headers)
        if target == "/records":
            text = json.dumps(RECORDS, default=lambda sent: base64.b64encode(sent).decode()).encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(text) + text)
            await writer.drain()
            return True
        try:
            body = json.loads(data)
            how = _how(str(body.get("model") or "{}"))
        except ValueError:
            body, how = {}, {"do": "echo"}
        key = str(body.get("user", target))
        record = {"method": method, "target": target, "headers": headers, "lines": lines, "size": len(data)}
        record |= {"body": body, "sent": b"", "left": False, "times": RECORDS.get(key, {}).get("times", 0) + 1}
        record["bodies"] = [*RECORDS.get(key, {}).get("bodies", []), body]
        RECORDS[key] = record
        if body.get("lz_penalty") == -1 and how.get("plugin"):
            how = {"do": "plain", "status": 400, "text": "lz_penalty = -1: must be a finite number from 0 to 100."}
        elif record["times"] > 1 and "then" in how:
            how = how["then"]
        gone = asyncio.ensure_future(reader.read(1))
        work = asyncio.ensure_future(self.answer(writer, target, body, how, record))
        await asyncio.wait({gone, work}, return_when=asyncio.FIRST_COMPLETED)
        if gone.done() and not work.done():
            record["left"] = True
            work.cancel()
        gone.cancel()
        results = await asyncio.gather(work, return_exceptions=True)
        if isinstance(results[0], (ConnectionError, OSError)):
            record["left"] = True
        return False

    async def answer(
        self, writer: asyncio.StreamWriter, path: str, body: dict[str, Any], how: dict[str, Any], record: dict[str, Any]
    ) -> None:
        do = how.get("do", "stream")
        if do == "hang":
            await asyncio.sleep(3600)
        if do == "reset":
            _reset(writer)
            return
        if do == "no http":
            writer.write(b"\x00\x01 this is not HTTP\r\n\r\n")
            await writer.drain()
            return
        if do in ("plain", "echo", "whole"):
            text = json.dumps(whole_answer(path, how, body)) if do == "whole" else how.get("text", "ok")
            kind = how.get("type", "application/json" if do == "whole" else "text/plain")
            await self.plain(writer, how.get("status", 200), text.encode(), kind, how.get("headers", {}), record)
            return
        headers = b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\nx-request-id: 77\r\n"
        writer.write(b"HTTP/1.1 200 OK\r\n" + headers + b"connection: close\r\nset-cookie: a=b\r\n\r\n")
        events = self.events(path, how)
        sent = record["sent"] = bytearray()
        async for piece in events:
            record["sent_size"] = record.get("sent_size", 0) + len(piece)
            if len(sent) < MOST_RECORDED:
                sent += piece
            writer.write(b"%x\r\n" % len(piece) + piece + b"\r\n")
            await writer.drain()
            if how.get("delay"):
                await asyncio.sleep(how["delay"])
        if do == "hang in stream":
            await asyncio.sleep(3600)
        if do == "reset in stream":
            _reset(writer)
            return
        if do != "no end":
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        record["complete"] = True

    async def plain(self, writer: Any, status: int, text: bytes, kind: str, more: dict[str, str], record: Any) -> None:
        record["sent"] = text
        headers = {"content-type": kind, "content-length": str(len(text)), "connection": "close", **more}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        writer.write(f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode() + text)
        await writer.drain()
        record["complete"] = True

    async def events(self, path: str, how: dict[str, Any]) -> AsyncIterator[bytes]:
        """Yield the stream in pieces that do not respect its events, if the answer is to be split."""
        kinds = {"chat": chat_events, "responses": responses_events}
        made = next((made for name, made in kinds.items() if name in path), completion_events)(how)
        if how["do"] in ("hang in stream", "reset in stream", "no end"):
            made = made[:5]
        if how["do"] == "half an event":
            made = [*made[:5], made[5][:20]]
        if how["do"] == "garbage":
            made = [*made[:5], b'\x00\xff\xfe\r\r\n: \x80\n\ndata: [[[[\n\ndata: {"choices": {"a": 3}}\n\n', *made[5:]]
        if how["do"] == "not utf-8":
            made = [*made[:5], b'data: {"choices":[{"index":0,"delta":{"content":"\xff\xfe"}}]}\n\n', *made[5:]]
        if how["do"] == "long line":
            for _ in range(how["mib"] * 16):
                yield b"x" * 65_536
            made = [b"\n\n", *made]
        if "split" not in how:
            for event in made:
                yield event
            return
        rng, whole = random.Random(how["split"]), b"".join(made)
        while whole:
            size = rng.choice((1, 3, 40, 200, 700))
            yield whole[:size]
            whole = whole[size:]


def _how(model: str) -> dict[str, Any]:
    """What to answer: JSON, or JSON in hexadecimal digits after an `x` for programs that split names at commas."""
    return json.loads(bytes.fromhex(model[1:]) if model.startswith("x") else model)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection so that the other side reads ECONNRESET."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if "content-length" in headers:
        return await reader.readexactly(int(headers["content-length"]))
    data = b""
    while headers.get("transfer-encoding") == "chunked":
        size = int(await reader.readuntil(b"\r\n"), 16)
        data += await reader.readexactly(size)
        await reader.readexactly(2)
        if not size:
            break
    return data


async def main(port: int) -> None:
    server = await asyncio.start_server(Server(), "127.0.0.1", port, backlog=2048)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(int(sys.argv[1])))
