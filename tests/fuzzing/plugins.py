"""Random requests through the validation of each server plug-in, which must decide as `ServerSettings` does."""

from __future__ import annotations

import asyncio
import json
import os
import random
import weakref
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from lz_penalty import LZPenaltyError
from lz_penalty import _packing as col
from lz_penalty.engines.server import VARIABLE, ServerSettings, server_settings
from lz_penalty.policy import RequestPolicy
from tests.fuzzing import fields
from tests.fuzzing.fields import Request
from tests.fuzzing.running import Part, Trial

CASES, SECONDS, MEGABYTES = 100_000, 0.010, 32.0
SMALL = 2_000  # bytes of a body
SPECIAL = tuple(range(0, 3 * 1_023, 3))  # ids that are exempt in every request: the largest allowed number


class Refused(NamedTuple):
    """The request was refused with this message."""

    message: str


class Path(NamedTuple):
    """The path of one request through a plug-in.

    Attributes:
        call: passes the request on; raises `LZPenaltyError` if it is refused.
        problem: returns what is wrong with the result of `call` for a request that must get these settings.
        unchanged: tells whether the objects of the caller are unchanged.
        truth: returns the settings that the request must get; raises `LZPenaltyError` if it must be refused.
    """

    call: Callable[[], Any]
    problem: Callable[[Any, Any], str | None]
    unchanged: Callable[[], bool]
    truth: Callable[[], Any]


def part(plugin: str, paths: Callable[[Request, random.Random], Path] | None = None) -> Part:
    """Return the cases of one plug-in. A test of this fuzzer replaces the plug-in by `paths`."""
    make = paths or PLUGINS[plugin]()

    def trial(rng: random.Random, _: int) -> Trial:
        request = fields.request(rng)
        path = make(request, rng)

        def run() -> Any:
            try:
                return path.call()
            except LZPenaltyError as error:
                return Refused(str(error))

        return Trial(run, lambda outcome: _problem(request, path, outcome), lambda: _about(request))

    return Part("requests", CASES, SECONDS, MEGABYTES, trial)


def _problem(request: Request, path: Path, outcome: Any) -> str | None:
    if not path.unchanged():
        return "an object of the caller was changed"
    try:
        want = path.truth()
    except LZPenaltyError as error:
        want = Refused(str(error))
    if request.expected is not fields.UNKNOWN:
        wrong = isinstance(want, Refused) if request.expected is not fields.REFUSED else not isinstance(want, Refused)
        if wrong or (not isinstance(want, Refused) and want != request.expected):
            return f"{want} instead of {request.expected}"
    if isinstance(want, Refused) != isinstance(outcome, Refused):
        return f"{_decision(outcome)}, but the settings of the server say: {_decision(want)}"
    if isinstance(outcome, Refused):
        return fields.message_problem(outcome.message)
    return path.problem(outcome, want) or fields.bounds_problem(want, fields.settings_of(request.server))


def _decision(outcome: Any) -> str:
    return f"refused ({outcome.message[:200]})" if isinstance(outcome, Refused) else "accepted"


def _about(request: Request) -> str:
    try:
        shown = repr(request.fields)
    except (RecursionError, ValueError):
        shown = f"fields that cannot be shown: {[key[:80] for key in map(str, request.fields)][:5]}"
    return f"server {request.server}, request {shown}"


def _use(server: str) -> ServerSettings:
    """Make these the settings of the server."""
    os.environ[VARIABLE] = server
    server_settings.cache_clear()
    return server_settings()


# ---------------------------------------------------------------- lines of the settings table: vLLM and SGLang


@lru_cache(maxsize=64)
def _reader(server: ServerSettings) -> Any:
    import torch

    from lz_penalty.engines._requests import SettingsReader

    return SettingsReader(server, SPECIAL, 2, torch.device("cpu"))


def _lines_problem(reader: Any, settings: Any, want: Any) -> str | None:
    """Return how the settings rows that the worker reads differ from the expected ones, or `None`."""
    from lz_penalty._packing import pack_configs

    configs = want.policy.configs if isinstance(want, RequestPolicy) else [want] * 5
    lines = pack_configs([one and replace(one, exempt_token_ids=(), include_prompt=True) for one in configs]).table
    if settings is None:
        nothing = not isinstance(want, RequestPolicy) and not lines[:, [col.WINDOW, col.LOOP_WINDOW]].any()
        return None if nothing else f"no settings instead of {want}"
    exempt = [col.EXEMPT_BEGIN, col.EXEMPT_END]
    for one, line, own in zip(settings.settings_rows, lines, configs, strict=True):
        if line.any():
            line[exempt] = one[exempt]
            ids = reader.pack(settings.settings_rows).exempt_ids[slice(*one[exempt])].tolist()
            if ids != sorted({*SPECIAL, *own.exempt_token_ids}):
                return f"other exempt ids than those of {own}: {ids[:20]}"
    if not np.array_equal(settings.settings_rows, lines):
        return f"lines {settings.settings_rows.tolist()} instead of {lines.tolist()}"
    if settings.asked != (want if isinstance(want, RequestPolicy) else None):
        return f"{settings.asked} instead of {want}"
    return None


def _by_lines(request: Request, settings: ServerSettings, params: Any, name: str, check: Callable[[], Any]) -> Path:
    """Return the path of a request that is checked on arrival and whose settings rows are read in the worker."""
    before = _attributes(params), fields.shape(request.fields)

    def call() -> Any:
        check()
        return _reader(settings).read(getattr(params, name), 0)

    return Path(
        call,
        partial(_lines_problem, _reader(settings)),
        lambda: (_attributes(params), fields.shape(request.fields)) == before,
        lambda: settings.settings_of(request.fields),
    )


# ---------------------------------------------------------------- vLLM


def _vllm() -> Callable[[Request, random.Random], Path]:
    from vllm import SamplingParams
    from vllm.exceptions import VLLMValidationError
    from vllm.sampling_params import StructuredOutputsParams

    from lz_penalty.engines.vllm import LZPenaltyLogitsProcessor

    def path(request: Request, rng: random.Random) -> Path:
        server = request.server
        if rng.random() < 0.2:
            server = json.dumps(json.loads(server) | {"stop_token_id": 7})
        settings = _use(server)
        try:
            params = SamplingParams(
                extra_args=request.fields,
                n=rng.choice((1, 1, 2)),
                seed=rng.choice((None, 5)),
                temperature=1.0,
                max_tokens=50,
                min_tokens=rng.choice((0, 3)),
                ignore_eos=rng.random() < 0.5,
                stop_token_ids=rng.choice((None, [9])),
                stop=rng.choice((None, ["end"])),
                structured_outputs=StructuredOutputsParams(regex="a*") if rng.random() < 0.1 else None,
            )
        except VLLMValidationError as error:
            return _never_comes(error)
        return _by_lines(
            request, settings, params, "extra_args", lambda: LZPenaltyLogitsProcessor.validate_params(params)
        )

    return path


def _never_comes(error: Exception) -> Path:
    """Return the path of a request that the engine itself refuses."""

    def refuse() -> Any:
        raise LZPenaltyError("the engine refuses it.") from error

    return Path(refuse, _same, lambda: True, refuse)


def _attributes(params: Any) -> list[Any]:
    """Return the attributes that the caller has set."""
    values = [(name, getattr(params, name)) for name in params.__struct_fields__]
    return [(name, id(value), list(value) if isinstance(value, list) else None) for name, value in values]


# ---------------------------------------------------------------- SGLang


def _sglang() -> Callable[[Request, random.Random], Path]:
    from sglang.srt.plugins.hook_registry import HookRegistry
    from sglang.srt.runtime_context import get_context
    from sglang.srt.sampling.sampling_params import SamplingParams

    from lz_penalty.engines.sglang import plugin

    _use(fields.PLAIN)
    plugin.register()
    HookRegistry.apply_hooks()
    get_context().override_server_args().__enter__()  # a server with default arguments

    def path(request: Request, rng: random.Random) -> Path:
        settings = _use(request.server)
        params = SamplingParams(custom_params=request.fields)
        return _by_lines(request, settings, params, "custom_params", lambda: params.verify(4096))

    return path


# ---------------------------------------------------------------- transformers serve


def _transformers() -> Callable[[Request, random.Random], Path]:
    from types import SimpleNamespace

    from fastapi import HTTPException
    from transformers import GenerationConfig
    from transformers.cli.serving.completion import CompletionHandler

    from lz_penalty.engines.transformers import _continuous as continuous
    from lz_penalty.engines.transformers import enable
    from lz_penalty.engines.transformers._settings import FIELDS, asked_of

    enable()
    handler = CompletionHandler(None, SimpleNamespace(_compile=False))
    of_model = GenerationConfig()
    of_model_before = dict(vars(of_model))

    def path(request: Request, rng: random.Random) -> Path:
        settings, batching = _use(request.server), rng.random() < 0.5
        ours = {key: value for key, value in request.fields.items() if isinstance(key, str) and key.startswith("lz_")}
        body = {"model": "any", "prompt": "a"} | ours
        before = fields.shape(body)

        def call() -> Any:
            try:
                handler._validate_request(body)
                made = handler._build_generation_config(body, of_model, use_cb=batching)
            except HTTPException as error:
                if error.status_code != 400:
                    raise
                raise LZPenaltyError(error.detail) from None
            if not batching:
                return asked_of(made)[0]
            asked = continuous.OF_THIS_REQUEST.get()
            return None if asked is continuous.OFF else asked

        given = {key: value for key, value in ours.items() if value is not None or key not in FIELDS}
        return Path(
            lambda: copy_context().run(call),  # as in a server: context variables belong to one request
            _same,
            lambda: fields.shape(body) == before and vars(of_model) == of_model_before,
            lambda: settings.settings_of(given),
        )

    return path


def _same(got: Any, want: Any) -> str | None:
    return None if got == want else f"{got} instead of {want}"


# ---------------------------------------------------------------- serve-llama


def _llama() -> Callable[[Request, random.Random], Path]:
    from lz_penalty._http import MAX_DEPTH, fields_of
    from lz_penalty.engines.llama_cpp._guard import CONFIG, MAX_BODY, Guard

    loop = asyncio.new_event_loop()
    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers}

    def path(request: Request, rng: random.Random) -> Path:
        try:
            settings = _use(request.server).without_policies()
        except LZPenaltyError:  # such a server would not start
            given = json.loads(request.server)
            settings = _use(
                json.dumps({name: value for name, value in given.items() if name not in ("default", "count_loops")})
            )
        body = fields.as_json(request.fields)
        middle = rng.randint(0, len(body))
        left = [body[:middle], body[middle:]]  # the body arrives in two parts
        answers: list[Any] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            """Read the body again, as the stock server does."""
            assert (await receive())["body"] == body
            answers.append(CONFIG.get())

        async def receive() -> Any:
            return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

        async def send(message: Any) -> None:
            answers.append(message)

        def call() -> Any:
            loop.run_until_complete(Guard(app, operator=settings)(scope, receive, send))
            first = answers[0]
            if isinstance(first, dict):
                assert first["status"] == (413 if len(body) > MAX_BODY else 400), first
                raise LZPenaltyError(json.loads(answers[1]["body"])["error"]["message"])
            return first

        def truth() -> Any:
            if len(body) > MAX_BODY:
                raise LZPenaltyError("too long.")
            # A small body must not be refused for its structure, unless it is deep.
            small = len(body) < SMALL and body.count(b"[") < MAX_DEPTH
            return settings.config_of(json.loads(body) if small else fields_of(body))

        return Path(call, _same, lambda: True, truth)

    weakref.finalize(path, loop.close)
    return path


PLUGINS: dict[str, Callable[[], Callable[[Request, random.Random], Path]]] = {
    "transformers": _transformers,
    "vllm": _vllm,
    "sglang": _sglang,
    "llama": _llama,
}
