"""Measure how long our code takes to handle hostile requests: `python -m benchmarks.hostile`.

Hostile settings go through every check that this environment has: the functions that all engines share, vLLM's
`validate_params`, SGLang's check, and the check of `transformers serve`. Whole bodies go through the middleware of
`serve-llama`: once alone, which is our part, and once with the stock server, but without a model. The time of a case is the
worst of several, in milliseconds of CPU time of the calling thread. It includes garbage collection of what a check makes.
The exit status is 1 if a case exceeds its limit, or if bad fields were accepted. With `--out`, each environment writes its
own section of one file. SGLang on a CPU needs `PYTHONPATH=tests/engines/sglang/sglang_on_cpu`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, suppress
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.workload import RESULTS, machine, write_json
from lz_penalty import LZPenaltyConfig, LZPenaltyError
from lz_penalty.engines.server import ServerSettings
from lz_penalty.policy import settings_from_request
from tests.support.malformed import hostile

LIMIT = 10.0  # milliseconds
LIMIT_STOCK = 100.0  # milliseconds, with the stock server's part
WHOLE = "serve-llama, all"
REPEATS = 7
PART = 65_536  # uvicorn passes a body on in parts of this many bytes
ENGINES = ("vllm", "sglang", "llama_cpp", "mlx", "transformers")

Read = Callable[[dict[str, Any]], Any]


# ---------------------------------------------------------------- fields


def readers() -> dict[str, Read]:
    """Return all checks of a request's fields that can run here. Each raises an error for a bad request."""
    found: dict[str, Read] = {
        "from_request": LZPenaltyConfig.from_request,
        "settings_from_request": settings_from_request,
        "settings_of": ServerSettings().settings_of,
    }
    if find_spec("vllm"):
        found["vLLM"] = _vllm()
    elif find_spec("sglang"):
        found["SGLang"] = _sglang()
    elif find_spec("transformers") and find_spec("fastapi") and not find_spec("llama_cpp"):
        found["transformers serve"] = _transformers()
    return found


def _vllm() -> Read:
    from vllm import SamplingParams

    from lz_penalty.engines.vllm import LZPenaltyLogitsProcessor

    params = SamplingParams()

    def read(fields: dict[str, Any]) -> None:
        params.extra_args = fields
        LZPenaltyLogitsProcessor.validate_params(params)

    return read


def _sglang() -> Read:
    from lz_penalty.engines.sglang._checks import settings_of

    return lambda fields: settings_of(SimpleNamespace(custom_params=fields))


def _transformers() -> Read:
    from lz_penalty.engines.transformers._serving import _validate_request

    validate = _validate_request(lambda self, body: None)
    return lambda fields: validate(None, fields)


def of_fields(read: Read, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the worst time of a check, and how it ended."""
    times, ended = [], ""
    for _ in range(REPEATS):
        since = time.thread_time()
        try:
            read(fields)
            ended = "accepted"
        except Exception as error:  # LZPenaltyError, or the engine's own error made from it
            ended = type(error).__name__
            refused = isinstance(error, LZPenaltyError) or getattr(error, "status_code", None) == 400
        times.append((time.thread_time() - since) * 1e3)
    return {
        "ms": round(max(times), 3),
        "ended": ended,
        "holds": max(times) <= LIMIT and ended != "accepted" and refused,
    }


# ---------------------------------------------------------------- bodies


def bodies() -> dict[str, tuple[str, bytes]]:
    """Return paths and bodies of slow requests: each has too much of something, or just as much as is allowed."""
    from lz_penalty.engines.llama_cpp._guard import (
        MAX_BODY,
        MAX_FRACTIONS,
        MAX_INTEGERS,
        MAX_MARKS,
        MAX_OUTSIDE,
        MAX_VALUES,
    )

    def string(of: bytes, more: bytes = b"") -> bytes:
        return b'{"prompt": "' + of + b'"' + more + b"}"

    def array(of: bytes, count: int, name: bytes = b"prompt") -> bytes:
        return b'{"' + name + b'": [' + b",".join([of] * count) + b"]}"

    def message(of: bytes, count: int, name: bytes, role: bytes = b"user") -> bytes:
        return b'{"messages": [' + array(of, count, name).replace(b"{", b'{"role": "' + role + b'", ', 1) + b"]}"

    room, few = MAX_BODY - 100, MAX_VALUES - 4
    exponents = MAX_FRACTIONS // 2
    half = b"," * (MAX_MARKS // 2)
    raw = {
        "as long as it may be": string(b"x" * room),
        "Japanese": string("読".encode() * (room // 3)),
        "as many \\n as there may be": string(b"\\n" * (MAX_MARKS - 3)),
        "as many x\\n as there may be": string(b"x\\n" * (MAX_MARKS - 3)),
        "commas and quotes in a string": string(half + b'x\\"' * (MAX_MARKS // 2 - 3)),
        "commas and backslashes in a string": string(half + b"x\\\\" * (MAX_MARKS // 4 - 3)),
        "\\u escapes": string(b"\\u0041" * (MAX_MARKS - 3)),
        "lone surrogates": string(b"\\ud800" * (MAX_MARKS - 3)),
        "too many \\n": string(b"\\n" * (room // 2)),
        "a string of commas": string(b"," * room),
        "a string of brackets": string(b"[" * room),
        "as many numbers as there may be": array(b"1.2345678901234567890123e-300", exponents),
        "as many fractions as there may be": array(b"0." + b"12345678901234567890" * 3, 2 * exponents),
        "as many integers as there may be": array(b"9" * (MAX_OUTSIDE // MAX_INTEGERS - 1), MAX_INTEGERS - 40),
        "as many numbers and integers as there may be": array(b"1.2345678901234567890123e-300", exponents)[:-2]
        + b",1" * (MAX_INTEGERS - exponents - 100)
        + b"]}",
        "long integers": array(b"9" * 64, room // 65),
        "long integers that pass": array(b"9" * 64, MAX_OUTSIDE // 65 - 4),
        "spaces and integers": array(b" 9" + b" " * 22, MAX_INTEGERS - 4),
        "1,000,000 closed brackets": b"{" + b"]" * room,
        "as many lists as there may be": array(b"[]", few // 2),
        "as many objects as there may be": array(b'{"a":0}', few // 2),
        "as many names as there may be": b"{" + b",".join(b'"%0110x":1' % at for at in range(few)) + b"}",
        "numbers and a long string": string(
            b"x" * (room // 2), b', "n": ' + array(b"1.234567890123456789e-300", exponents)
        ),
        "100,000 names": b"{" + b",".join(b'"%x":1' % at for at in range(100_000)) + b"}",
        "100,000 names of ours": b"{" + b",".join(b'"lz_%x":1' % at for at in range(80_000)) + b"}",
        "100,000 token ids": array(b"12345", 100_000),
        "100,000 lists": array(b"[]", 100_000),
        "integers of 4,300 digits": array(b"9" * 4_300, room // 4_301),
        "an integer of 1,000,000 digits": array(b"9" * (room - 50), 1),
        "a number of 1,000,000 digits": array(b"0." + b"9" * (room - 50), 1),
        "nested 900 deep, again and again": array(b"[" * 900 + b"]" * 900, few // 901),
        "nested 1,000 deep": b'{"lz_penalty": ' + b"[" * 1_000 + b"]" * 1_000 + b"}",
        "nested 8,000 deep": b'{"lz_penalty": ' + b"[" * 8_000 + b"]" * 8_000 + b"}",
        "nested 100,000 deep": b'{"lz_penalty": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        "1,000,000 opened brackets": b"[" * room,
        "1,000,000 quotes": b'"' * room,
        "1,000,000 spaces": b"{" + b" " * room + b"}",
        "1,000,000 lines, and a mistake": b"\n" * room + b"!",
        "UTF-16": string(b"x" * (room // 2 - 50)).decode().encode("utf-16"),
        "not UTF-8": string(b"x" * (room - 50) + b"\xff"),
        "10 MB": b" " * 10_000_000,
    }
    chat, embeddings, tokenize = "/v1/chat/completions", "/v1/embeddings", "/extras/tokenize"
    part = b'{"type":"text","text":""}'
    others = {
        "messages: as many {} as there may be": (chat, array(b"{}", few // 2, b"messages")),
        "messages: as many without content as there may be": (chat, array(b'{"role":"user"}', few // 2, b"messages")),
        "messages: as many as there may be": (chat, array(b'{"role":"user","content":""}', few // 3, b"messages")),
        "messages: the last is bad": (
            chat,
            array(b'{"role":"user","content":""}', few // 3 - 1, b"messages")[:-2] + b",{}]}",
        ),
        "messages: integers": (chat, array(b"1", MAX_INTEGERS - 4, b"messages")),
        "messages: a long string": (chat, array(b'"' + b"x" * room + b'"', 1, b"messages")),
        "content: as many parts as there may be": (chat, message(part, few // 3, b"content")),
        "content: the last part is bad": (chat, message(part, few // 3 - 1, b"content")[:-4] + b",{}]}]}"),
        "content: integers": (chat, message(b"1", MAX_INTEGERS - 4, b"content")),
        "tool_calls: as many {} as there may be": (chat, message(b"{}", few // 2, b"tool_calls", b"assistant")),
        "tools: as many {} as there may be": (chat, array(b"{}", few // 2, b"tools")),
        "logit_bias: as many bad ones as there may be": (
            "/v1/completions",
            b'{"prompt":"a","logit_bias":{' + b",".join(b'"%0110x":"x"' % at for at in range(few)) + b"}}",
        ),
        "stop: as many {} as there may be": ("/v1/completions", array(b"{}", few // 2, b"stop")),
        "embeddings: 300,000 lists": (embeddings, array(b"[]", 300_000, b"input")),
        "embeddings: 500,000 opened brackets": (embeddings, b"[" * 500_000),
        "embeddings: integers": (embeddings, array(b"1", MAX_INTEGERS - 4, b"input")),
        "embeddings: strings": (embeddings, array(b'"x"', few, b"input")),
        "tokenize: 300,000 lists": (tokenize, array(b"[]", 300_000, b"input")),
        "tokenize: a long string": (tokenize, b'{"input": "' + b"x" * room + b'"}'),
        "detokenize: as many as there may be": ("/extras/detokenize", array(b"12345", MAX_INTEGERS - 4, b"tokens")),
        "detokenize: strings": ("/extras/detokenize", array(b'"x"', few, b"tokens")),
        "no such path: 300,000 lists": ("/nowhere", array(b"[]", 300_000)),
    }
    fields = {}
    for what, given in hostile().items():
        with suppress(ValueError, RecursionError):  # json cannot write it; `raw` has a similar case
            fields[f"field: {what}"] = json.dumps({"prompt": "a"} | given).encode()
    return {case: ("/v1/completions", body) for case, body in (raw | fields).items()} | others


def servers() -> dict[str, tuple[Any, float]]:
    """Return the middleware of `serve-llama` alone, the whole server without a model, and their limits."""
    from lz_penalty.engines.llama_cpp import _server as llama_server
    from lz_penalty.engines.llama_cpp._guard import Guard
    from lz_penalty.engines.llama_cpp._options import GivenModel, GivenServer, ServedModel

    async def nothing(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    llama_server.stock.LlamaProxy = _NoModel
    model = ServedModel(GivenModel(model="none"), ServerSettings())
    guard = Guard(nothing, ServerSettings(), b"key", check=llama_server._check_of_bodies())
    return {
        "serve-llama": (guard, LIMIT),
        WHOLE: (llama_server.create_app(GivenServer(api_key="key"), [model]), LIMIT_STOCK),
    }


class _NoModel:
    """Replaces the models of the stock server; every call returns an empty result."""

    def __init__(self, models: list[Any]) -> None:
        self._settings = models[0].model_dump()

    def __iter__(self) -> Any:
        return iter(["none"])

    def __getitem__(self, name: str) -> Any:
        return self._settings

    def __call__(self, name: Any = None, **given: Any) -> Any:
        return "" if given else self

    create_chat_completion = create_embedding = __call__

    def tokenize(self, text: bytes, special: bool) -> list[int]:
        return []

    def detokenize(self, tokens: list[int]) -> bytes:
        return b""


def of_body(app: Any, limit: float, path: str, body: bytes) -> dict[str, Any]:
    """Return the worst time of an app for a body, and the status of its answer."""
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [(b"authorization", b"Bearer key"), (b"content-type", b"application/json")],
    }

    async def once() -> tuple[float, int]:
        parts = [body[at : at + PART] for at in range(0, len(body), PART)]
        parts.reverse()
        sent = []

        async def receive() -> Any:
            if not parts:
                await asyncio.sleep(3600)
            return {"type": "http.request", "body": parts.pop(), "more_body": bool(parts)}

        async def send(message: Any) -> None:
            sent.append(message)

        since = time.thread_time()
        await app(dict(scope), receive, send)
        return (time.thread_time() - since) * 1e3, sent[0]["status"]

    ended = [asyncio.run(once()) for _ in range(REPEATS)]
    worst, status = max(ms for ms, _ in ended), ended[0][1]
    return {"ms": round(worst, 3), "ended": str(status), "holds": worst <= limit}


# ---------------------------------------------------------------- the run


def measure() -> list[dict[str, Any]]:
    checks, cases = readers(), hostile()
    gc.collect()
    gc.freeze()  # a server would not have all these cases in memory
    rows = []
    for case, fields in cases.items():
        for path, read in checks.items():
            rows.append({"path": path, "case": case, **of_fields(read, fields)})
    if find_spec("llama_cpp"):
        for name, (app, limit) in servers().items():
            for case, (path, body) in bodies().items():
                with redirect_stderr(StringIO()):  # the stock server prints the errors that it answers with 500
                    rows.append({"path": name, "case": case, **of_body(app, limit, path, body)})
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    for of_bodies in (False, True):
        chosen = [row for row in rows if row["path"].startswith("serve-llama") is of_bodies]
        if not chosen:
            continue
        paths = list(dict.fromkeys(row["path"] for row in chosen))
        table = Table("ms, the worst of several", *paths, "ended with")
        for case in dict.fromkeys(row["case"] for row in chosen):
            of_case = [row for row in chosen if row["case"] == case]
            cells = [f"{row['ms']:.2f}{'' if row['holds'] else ' FAILS'}" for row in of_case]
            table.add_row(case, *cells, ", ".join(sorted({row["ended"] for row in of_case})))
        Console(width=160).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, help=f"JSON file, such as {RESULTS.name}/hostile.json; its other sections are kept"
    )
    out = parser.parse_args().out
    rows = measure()
    show(rows)
    failed = [row for row in rows if not row["holds"]]
    worst = {}
    for name, limit in (("worst", LIMIT), ("worst_with_stock", LIMIT_STOCK)):
        chosen = [row for row in rows if (row["path"] == WHOLE) is (limit == LIMIT_STOCK)]
        if chosen:
            worst[name] = max(chosen, key=lambda row: row["ms"])
            print(f"{name}: {worst[name]['ms']:.2f} ms ({worst[name]['case']}); limit {limit:g} ms")
    print(f"{len(failed)} failed")
    if out is not None:
        stored = json.loads(out.read_text()) if out.exists() else {}
        here = next(name for name in ENGINES if find_spec(name))
        stored["limit_ms"] = LIMIT
        ms: dict[str, dict[str, float]] = {}
        for row in rows:
            ms.setdefault(row["path"], {})[row["case"]] = row["ms"]
        stored.setdefault("environments", {})[here] = {"machine": machine(), "failed": failed, **worst, "ms": ms}
        write_json(out, stored)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
