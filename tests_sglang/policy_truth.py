"""Requests with policies, ladders and shadow mode, and the truth about each: a plain loop over reference and sections.

As in `requests_and_truth`, the loop is checked in one pass over the finished text. The ladder is told by
`repetition_at_end`, which reads the whole output anew at every token.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from cases import settings_of
from requests_and_truth import NEAR_TIE, Request

from lz_penalty import LZPenaltyConfig, bundled_model, reference
from lz_penalty.detection import repetition_at_end
from lz_penalty.policy import SECTIONS, RequestPolicy, Sections, closers_of, settings_from_request

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
BEGINNINGS = ("", "<think>\n", "<think>\n", "```python\n", "Here it is:\n\n| name | value |\n|---|---|\n", '\n{"a": [')
MARKS = "`\n|{}"  # made more likely, so that the texts change their sections


@dataclass
class PolicyRequest(Request):
    """A request with what its fields mean."""

    asked: LZPenaltyConfig | RequestPolicy | None = None
    bias: dict[int, float] = field(default_factory=dict)


def policy_requests(tokenizer: Any, count: int, seed: int = 0) -> list[PolicyRequest]:
    """Requests with all kinds of policies, greedy, beginning in all sections."""
    rng = random.Random(seed)
    requests = []
    for number in range(count):
        fields = ASKED[number % len(ASKED)]
        text = rng.choice(bundled_model.prompts())
        prompt = tokenizer(BEGINNINGS[number % len(BEGINNINGS)]).input_ids
        prompt = (tokenizer(text).input_ids[:60] if rng.random() < 0.3 else []) + prompt
        prompt += tokenizer(text).input_ids[: rng.choice((2, 8, 30))]
        bias = {tokenizer(mark).input_ids[-1]: rng.choice((2.0, 4.0, 6.0)) for mark in MARKS if rng.random() < 0.5}
        sampling = {"temperature": 0, "ignore_eos": True, "logit_bias": {str(key): bias[key] for key in bias}}
        tokens = rng.choice((30, 60, 100))
        requests.append(
            PolicyRequest(prompt, fields, None, tokens, sampling, settings_from_request(fields or {}), bias)
        )
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
        queue: list[int] = []
        unsure = 0
        for i, token in enumerate(output):
            self.seen[state.section] += policy is not None
            if not shadow and self._run(policy and policy.ladder.stop_copies, output[:i]):
                raise AssertionError(f"goes on behind token {i}; {request.fields}")
            if not queue and not shadow and state.section == "thinking":
                if self._run(policy and policy.ladder.end_thinking_copies, output[:i]):
                    queue = list(self._marker)
                    self.seen["ended thinking"] += 1
            config = policy.policy.configs[SECTIONS.index(state.section)] if policy else asked
            plain = logits[i].tolist()
            scores = self._penalised(plain, config, prompt, output[:i])
            if queue:
                assert token == queue.pop(0), f"token {i} should be the marker's"
            else:
                self.seen["near-ties"] += self._is_near_tie(plain if shadow else scores, request.bias, token, i)
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

    def _is_near_tie(self, scores: list[float], bias: dict[int, float], token: int, i: int) -> bool:
        scores = list(scores)
        for key, value in bias.items():
            scores[key] += value
        gap = max(scores) - scores[token]
        assert gap < NEAR_TIE, f"token {i} is {token}, {gap:.4f} below the best"
        return gap > 0

    def _check_reason(self, request: PolicyRequest, policy: RequestPolicy | None, output: list[int], reason: Any) -> None:
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
