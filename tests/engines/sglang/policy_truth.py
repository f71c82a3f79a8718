"""Requests with policies, ladders and shadow mode, and the truth about each: a plain loop over reference and sections.

As in `requests_and_truth`, the loop is checked in one pass over the finished text. The ladder is told by
`repetition_at_end`, which reads the whole output anew at every token.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import xgrammar

from lz_penalty import LZPenaltyConfig, bundled_model, reference
from lz_penalty.detection import repetition_at_end
from lz_penalty.policy import SECTIONS, Ladder, RequestPolicy, Sections, closers_of, settings_from_request
from tests.support.cases import settings_of
from tests.support.requests_and_truth import NEAR_TIE, VOCAB_SIZE, Request

RUNG = 16  # tokens from which a run counts for the ladder
ASKED = (
    {"lz_policy": "default"},
    {"lz_policy": "default", "lz_penalty": 0.4, "lz_table": "none"},
    {"lz_preset": "guarded", "lz_code": "none", "lz_tool_call": "failsafe"},
    {"lz_answer": "none", "lz_thinking": "paper", "lz_code": "paper", "lz_penalty": 0.3, "lz_window_size": 40},
    {"lz_stop_copies": 4},
    {"lz_end_thinking_copies": 3, "lz_stop_copies": 6},
    {"lz_policy": "default", "lz_penalty": 0.05, "lz_end_thinking_copies": 3},
    {"lz_policy": "default", "lz_penalty": 0.3, "lz_shadow": True},
    {"lz_preset": "guarded", "lz_penalty": 0.3, "lz_shadow": True, "lz_stop_copies": 5},
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
SCRIPT = (  # a grammar, so that sections change
    r"([A-Z][a-z ]{3,9}\.\n\n```py\n([a-z]{1,6} = [a-z]{1,6}\n){2}```\n\n\| [a-z ]{4,9} \|\n\| [a-z ]{4,9} \|\n\n"
    r'\{"[a-z]{2,6}": "[a-z ]{4,9}"\}\n\n){9}'
)


class Allowed:
    """Which tokens the grammar allows next, according to the library that SGLang uses too."""

    def __init__(self, compiled: xgrammar.CompiledGrammar) -> None:
        self._matcher = xgrammar.GrammarMatcher(compiled)
        self._bits = xgrammar.allocate_token_bitmask(1, VOCAB_SIZE)

    def mask(self, scores: list[float]) -> list[float]:
        self._matcher.fill_next_token_bitmask(self._bits)
        masked = torch.tensor([scores])
        xgrammar.apply_token_bitmask_inplace(masked, self._bits)
        return masked[0].tolist()

    def push(self, token: int) -> None:
        assert self._matcher.accept_token(token), "outside of the grammar"


@dataclass
class PolicyRequest(Request):
    """A request with what its fields mean."""

    asked: LZPenaltyConfig | RequestPolicy | None = None
    allowed: Callable[[], Allowed] | None = None


def policy_requests(tokenizer: Any, count: int, scripts: bool) -> list[PolicyRequest]:
    """Requests with all kinds of policies, greedy, beginning in all sections; a third with a grammar, if `scripts`."""
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
        if not {"lz_end_thinking_copies", "lz_stop_copies"}.isdisjoint(
            fields or ()
        ):  # short prompts in thinking repeat themselves most
            request.prompt, request.max_tokens = tokenizer("<think>\n").input_ids + text[:2], 100
        elif number % 3 or not scripts:
            request.prompt = request.prompt if rng.random() < 0.2 else []
            request.prompt += tokenizer(rng.choice(BEGINNINGS)).input_ids + text[: rng.choice((2, 8, 20))]
        else:
            request.sampling["regex"] = SCRIPT
            request.allowed = partial(Allowed, script)
        requests.append(request)
    return requests


class Truth:
    """Checks outputs, and counts what happened in them.

    Args:
        model: in transformers, float32.
        tokenizer: its own.
        special: ids that are exempt.
    """

    def __init__(self, model: Any, tokenizer: Any, special: tuple[int, ...]) -> None:
        self._model, self._special = model, special
        self._sections = Sections.of(tokenizer)
        self._marker = list(closers_of(self._sections, tokenizer)[self._sections.pairs[0]])
        self.seen: Counter[str] = Counter()

    @torch.no_grad()
    def check(self, request: PolicyRequest, output: list[int], reason: dict[str, Any]) -> None:
        """One output and its finish reason."""
        asked, prompt = request.asked, request.prompt
        policy = asked if isinstance(asked, RequestPolicy) else None
        shadow = policy is not None and policy.shadow
        logits = self._model(torch.tensor([prompt + output[:-1]])).logits[0, len(prompt) - 1 :]
        state = self._sections.read(prompt)
        allowed = request.allowed and request.allowed()
        queue: list[int] = []
        unsure = 0
        for i, token in enumerate(output):
            self.seen[state.section] += policy is not None
            ladder = policy.ladder if policy and not shadow else Ladder()
            if not queue and state.section == "thinking" and self._run(ladder.end_thinking_copies, output[:i]):
                queue = list(self._marker)
                self.seen["ended thinking"] += 1
            elif not queue:
                assert not self._run(ladder.stop_copies, output[:i]), f"goes on behind token {i}; {request.fields}"
            config = policy.policy.configs[SECTIONS.index(state.section)] if policy else asked
            plain = logits[i].tolist()
            scores = self._penalised(plain, config, prompt, output[:i])
            if queue:
                assert token == queue.pop(0), f"token {i} should be the marker's"
            else:
                self.seen["near-ties"] += self._is_near_tie(plain if shadow else scores, allowed, token, i)
            if shadow:
                unsure += min(_margin(plain), _margin(scores)) < NEAR_TIE
                self.seen["would differ"] += (differs := plain.index(max(plain)) != scores.index(max(scores)))
                self.seen["of this"] += differs
            new = self._sections.advance(state, token)
            self.seen["turns"] += policy is not None and new.section != state.section
            state = new
        self._check_reason(request, policy, output, reason)
        if shadow:
            assert abs(reason["lz_shadow_changed"] - self.seen.pop("of this", 0)) <= unsure
            assert reason["lz_shadow_steps"] == len(output)

    def _run(self, copies: float | None, output: list[int]) -> Any:
        return copies and repetition_at_end(output, min_copies=copies, min_length=RUNG)

    def _penalised(self, scores: list[float], config: Any, prompt: list[int], output: list[int]) -> list[float]:
        if config is None:
            return scores
        config = replace(config, exempt_token_ids=(*config.exempt_token_ids, *self._special))
        context = (prompt if config.include_prompt else []) + output
        return reference.penalise(scores, context, strength=config.strength, **settings_of(config))

    def _is_near_tie(self, scores: list[float], allowed: Allowed | None, token: int, i: int) -> bool:
        if allowed is not None:
            scores = allowed.mask(scores)
            allowed.push(token)
        gap = max(scores) - scores[token]
        assert gap < NEAR_TIE, f"token {i} is {token}, {gap:.4f} below the best"
        return gap > 0

    def _check_reason(
        self, request: PolicyRequest, policy: RequestPolicy | None, output: list[int], reason: Any
    ) -> None:
        run = policy and not policy.shadow and self._run(policy.ladder.stop_copies, output)
        if run and len(output) < request.max_tokens:
            self.seen["stopped"] += 1
            assert (reason["type"], reason["matched"]) == ("stop", "lz_repetition")
            assert reason["lz_repetition"] == [run.start, run.period, run.length]
            assert reason["lz_stopped"] == 1
        else:
            assert (reason["type"], len(output)) == ("length", request.max_tokens)
        if not policy or not (policy.ladder or policy.shadow):
            assert not any(key.startswith("lz_") for key in reason)


def _margin(scores: list[float]) -> float:
    second, first = sorted(scores)[-2:]
    return first - second
