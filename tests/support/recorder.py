"""Relay HTTP to a server and record the bytes of every answer: `python -m tests.support.recorder PORT TARGET_PORT`.

`GET /records` returns the answers' bodies by the request's header `x-record`.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import sys

RECORDS: dict[str, bytearray] = {}


async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: int) -> None:
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head[:-4].split(b"\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        body = await reader.readexactly(int(headers.get(b"content-length", b"0")))
        if b" /records " in first:
            found = {key: base64.b64encode(_body(bytes(value))).decode() for key, value in RECORDS.items()}
            data = json.dumps(found).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(data) + data)
            await writer.drain()
        else:
            kept = [line for line in lines if not line.lower().startswith(b"connection:")]
            request = b"\r\n".join([first, *kept, b"connection: close"]) + b"\r\n\r\n" + body
            record = RECORDS.setdefault(headers.get(b"x-record", b"").decode(), bytearray())
            await _answer(reader, writer, target, request, record)
    writer.close()


async def _answer(reader, writer, target: int, request: bytes, record: bytearray) -> None:
    upstream, to_upstream = await asyncio.open_connection("127.0.0.1", target)
    to_upstream.write(request)

    async def copy() -> None:
        while part := await upstream.read(65_536):
            record.extend(part)
            writer.write(part)
            await writer.drain()

    work, gone = asyncio.ensure_future(copy()), asyncio.ensure_future(reader.read(1))
    await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
    for task in (work, gone):
        task.cancel()
    await asyncio.gather(work, gone, return_exceptions=True)
    to_upstream.close()


def _body(answer: bytes) -> bytes:
    """The body of an answer that may be chunked and may have been cut off."""
    head, _, rest = answer.partition(b"\r\n\r\n")
    if b"chunked" not in head.lower():
        return rest
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size or b"0", 16)
        body += rest[:length]
        rest = rest[length + 2 :]
        if not length:
            break
    return body


async def main(port: int, target: int) -> None:
    server = await asyncio.start_server(lambda r, w: relay(r, w, target), "127.0.0.1", port, backlog=2048)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
