"""Requests with policies, ladders and shadow mode for SGLang, some with a grammar, and the check of their outputs."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import xgrammar

from lz_penalty import bundled_model
from lz_penalty.policy import Asked, RequestPolicy, settings_from_request
from tests.support.policy_truth import Checked, Truth
from tests.support.requests_and_truth import VOCAB_SIZE, Request
from tests.support.settings import UNGATED

ASKED = (
    {"lz_policy": "default"},
    {"lz_policy": "default", "lz_penalty": 0.4, "lz_table": "none", "lz_gate_window": 40, "lz_include_prompt": 1},
    {"lz_preset": "guarded", "lz_gate_low": 0.0, "lz_gate_window": 40, "lz_code": "none", "lz_tool_call": "failsafe"},
    {"lz_answer": "none", "lz_thinking": "paper", "lz_code": "paper", "lz_penalty": 0.3, "lz_window_size": 40},
    {"lz_stop_copies": 4},
    {"lz_end_thinking_copies": 3, "lz_stop_copies": 6},
    {"lz_policy": "default", "lz_penalty": 0.05, "lz_end_thinking_copies": 3},
    {"lz_policy": "default", "lz_penalty": 0.3, "lz_shadow": True},
    UNGATED.to_request() | {"lz_penalty": 0.3, "lz_shadow": True, "lz_stop_copies": 5},
    {"lz_preset": "guarded"},
    None,
)
BEGINNINGS = (
    "",
    "<think>\n",
    "<think>\n",
    "```python\n",
    "Here it is:\n\n| name | value |\n|---|---|\n| ",
    '\n{"a": "',
)
SCRIPT = (  # a grammar in which sections change
    r"([A-Z][a-z ]{3,9}\.\n\n```py\n([a-z]{1,6} = [a-z]{1,6}\n){2}```\n\n\| [a-z ]{4,9} \|\n\| [a-z ]{4,9} \|\n\n"
    r'\{"[a-z]{2,6}": "[a-z ]{4,9}"\}\n\n){9}'
)


class Grammar:
    """A mask of the tokens that the grammar forbids. The library is the one that SGLang uses."""

    def __init__(self, compiled: xgrammar.CompiledGrammar) -> None:
        self._matcher = xgrammar.GrammarMatcher(compiled)
        self._bits = xgrammar.allocate_token_bitmask(1, VOCAB_SIZE)
        self._read = 0

    def __call__(self, output: list[int], scores: list[float]) -> list[float]:
        for token in output[self._read :]:
            assert self._matcher.accept_token(token), "outside of the grammar"
        self._read = len(output)
        self._matcher.fill_next_token_bitmask(self._bits)
        masked = torch.tensor([scores])
        xgrammar.apply_token_bitmask_inplace(masked, self._bits)
        return masked[0].tolist()


@dataclass
class PolicyRequest(Request):
    """A request, the settings that its fields ask for, and its grammar."""

    asked: Asked = None
    grammar: Callable[[], Grammar] | None = None


def policy_requests(tokenizer: Any, count: int, scripts: bool) -> list[PolicyRequest]:
    """Return greedy requests with all kinds of policies that begin in all sections.

    Args:
        tokenizer: the tokenizer of the bundled model.
        count: how many.
        scripts: whether a third of them has a grammar in which sections change.
    """
    rng = random.Random(0)
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=VOCAB_SIZE)
    script = xgrammar.GrammarCompiler(info).compile_regex(SCRIPT)
    requests = []
    for number in range(count):
        fields = ASKED[number % len(ASKED)]
        text = tokenizer(rng.choice(bundled_model.prompts())).input_ids
        sampling = {"temperature": 0, "ignore_eos": True}
        request = PolicyRequest(text[:60], fields, None, rng.choice((30, 60, 100)), sampling)
        request.asked = settings_from_request(fields or {})
        if not {"lz_end_thinking_copies", "lz_stop_copies"}.isdisjoint(fields or ()):
            # Short prompts in thinking lead into loops most often.
            request.prompt, request.max_tokens = tokenizer("<think>\n").input_ids + text[:2], 100
        elif number % 3 or not scripts:
            request.prompt = request.prompt if rng.random() < 0.2 else []
            request.prompt += tokenizer(rng.choice(BEGINNINGS)).input_ids + text[: rng.choice((2, 8, 20))]
        else:
            request.sampling["regex"] = SCRIPT
            request.grammar = partial(Grammar, script)
        requests.append(request)
    return requests


def check(truth: Truth, model: Any, request: PolicyRequest, output: list[int], reason: dict[str, Any]) -> Counter[str]:
    """Check an output and its finish reason; return what was seen (see `Checked`), and how many were "stopped"."""
    asked = request.asked
    mask = request.grammar and request.grammar()
    checked = truth.check_output(model, request.prompt, asked, output, mask)
    assert checked.tokens == len(output), f"goes on after token {checked.tokens}; {request.fields}"
    _check_reason(checked, request, reason)
    if isinstance(asked, RequestPolicy) and asked.shadow:
        assert abs(reason["lz_shadow_changed"] - checked.seen["would differ"]) <= checked.seen["unsure"]
        assert reason["lz_shadow_steps"] == len(output)
        checked.seen["shadow"] = checked.seen["would differ"]
    checked.seen["stopped"] = int(reason["type"] == "stop")
    return checked.seen


def _check_reason(checked: Checked, request: PolicyRequest, reason: dict[str, Any]) -> None:
    run = checked.stopped
    if run and checked.tokens < request.max_tokens:
        assert (reason["type"], reason["matched"]) == ("stop", "lz_repetition")
        assert reason["lz_repetition"] == [run.start, run.period, run.length]
        assert reason["lz_stopped"] == 1
    else:
        assert (reason["type"], checked.tokens) == ("length", request.max_tokens)
    asked = request.asked
    if not isinstance(asked, RequestPolicy) or not (asked.ladder or asked.shadow):
        assert not any(key.startswith("lz_") for key in reason)
