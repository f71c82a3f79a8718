"""Whole answers: a limit on tokens makes a repeated frame a loop."""

import json

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
