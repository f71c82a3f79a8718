"""Whole answers: a limit on tokens makes a repeated frame a loop."""

import json
import subprocess
import sys

import pytest

from lz_penalty.guard._watch import Thresholds
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
