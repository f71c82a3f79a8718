"""Whole answers: a limit on tokens makes a repeated frame a loop."""

import asyncio
import importlib
import json
import subprocess
import sys
import threading
from types import ModuleType, SimpleNamespace

import pytest

from lz_penalty.detection import _runs
from lz_penalty.guard import GuardSettings, _exchange
from lz_penalty.guard._metrics import Metrics
from lz_penalty.guard._watch import INLINE, Thresholds, examine
from lz_penalty.guard._whole import examined

CHAIN = "Here it is.\n" + "".join(f"    elif n == {i}:\n        return {i * i}\n" for i in range(60))
RESPONSE = {"output": [{"type": "message", "content": [{"type": "output_text", "text": CHAIN}]}]}


def chat(reason):
    return {"choices": [{"index": 0, "message": {"content": CHAIN}, "finish_reason": reason}]}


@pytest.mark.parametrize(
    ("route", "answer", "criteria"),
    [
        ("chat", chat("length"), ["structure"]),
        ("chat", chat("stop"), []),
        ("completions", {"choices": [{"index": 0, "text": CHAIN, "finish_reason": "length"}]}, ["structure"]),
        ("responses", RESPONSE | {"incomplete_details": {"reason": "max_output_tokens"}}, ["structure"]),
        ("responses", RESPONSE | {"incomplete_details": {"reason": "content_filter"}}, []),
        ("responses", RESPONSE | {"incomplete_details": None}, []),
    ],
)
def test_a_frame_is_a_loop_if_a_limit_cut_the_answer_off(route, answer, criteria):
    found = examined(route, json.dumps(answer).encode(), Thresholds())
    assert [verdict.criterion for verdict in found.verdicts] == criteria
    if criteria:
        found.cut_back("stop")
        assert found.loops[0][1][found.loops[0][2]].count("elif") <= 2


STARTED = """
from lz_penalty.guard import GuardSettings, create_app
create_app(GuardSettings("http://localhost:8000"))
from lz_penalty.detection import _runs, _skeleton
from lz_penalty.guard._watch import Part, Thresholds, examine
compiled = lambda: [len(one.signatures) for one in (_runs._find_runs, _skeleton._read)]
before = compiled()
line = "A line of a text that goes on and on, with the number 17 in it.\\n"
for text in (line * 3, line * 9, "caf\u00e9 " + line * 3, "caf\u00e9 " * 9 + line * 9, "short", ""):
    for capped in (False, True):
        examine(Part(0, "content", 0, text), Thresholds(), capped=capped)
print(before, compiled())
"""


def test_the_start_compiles_what_answers_need():
    """The first answer that a limit cut off blocked the event loop for 0.5 to 6 s."""
    pytest.importorskip("numba")
    done = subprocess.run([sys.executable, "-c", STARTED], capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.stderr) == ("[2, 1] [2, 1]\n", "")


def in_main_thread(monkeypatch, module, name, function):
    """Whether each call of a function of a module runs in the main thread."""
    found = []

    def told(*arguments, **options):
        found.append(threading.current_thread() is threading.main_thread())
        return function(*arguments, **options)

    monkeypatch.setattr(module, name, told)
    return found


@pytest.mark.parametrize(
    ("compiled", "length", "inline"), [(True, 100, True), (True, INLINE, False), (False, 100, False)]
)
def test_the_event_loop_examines_only_what_is_quick(monkeypatch, compiled, length, inline):
    """Without Numba, 8 kB took up to 0.12 s."""
    monkeypatch.setattr(_runs, "COMPILED", compiled)
    found = in_main_thread(monkeypatch, _exchange, "examined", examined)
    services = SimpleNamespace(settings=GuardSettings("http://x"), metrics=Metrics(), lock=asyncio.Lock())
    exchange = _exchange.Exchange(services, None, "chat", "cut", b"/", [], b"")
    answer = {"choices": [{"index": 0, "message": {"content": "a" * length}, "finish_reason": "stop"}]}
    asyncio.run(exchange._examined(json.dumps(answer).encode()))
    assert found == [inline]


@pytest.fixture
def litellm(monkeypatch):
    """The callback, without LiteLLM."""
    for name in ("litellm", "litellm.integrations", "litellm.integrations.custom_logger"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["litellm.integrations.custom_logger"].CustomLogger = object
    monkeypatch.delitem(sys.modules, "lz_penalty.guard.litellm", raising=False)
    yield importlib.import_module("lz_penalty.guard.litellm")
    sys.modules.pop("lz_penalty.guard.litellm")


@pytest.mark.parametrize(
    ("compiled", "copies", "inline"),
    [(True, 500, [True]), (True, 2_000, [False]), (False, 500, [False]), (True, 2**20, [])],
)
def test_the_callback_for_litellm_examines_long_answers_in_a_thread(monkeypatch, litellm, compiled, copies, inline):
    monkeypatch.setattr(_runs, "COMPILED", compiled)
    found = in_main_thread(monkeypatch, litellm, "examine", examine)
    text = "ha ha " * copies
    choice = SimpleNamespace(index=0, finish_reason="length", message=SimpleNamespace(content=text))
    response = SimpleNamespace(choices=[choice])
    asyncio.run(litellm.loop_guard.async_post_call_success_hook({}, None, response))
    assert found == inline
    assert choice.message.content == ("ha " if inline else text)
    assert hasattr(response, "lz_guard") is bool(inline)
