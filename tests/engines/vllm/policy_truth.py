"""The truth about requests with a policy: sections read anew from the whole text, and the reference.

`check_row` is for one row of logits inside an engine, `check_output` for a finished text: in one pass, as in
`requests_and_truth`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from lz_penalty import reference
from lz_penalty.engines.server import ServerSettings
from lz_penalty.ops import apply_lz_penalty_
from lz_penalty.policy import RequestPolicy, Sections, Tracker, closers_of
from tests.support.cases import settings_of
from tests.support.requests_and_truth import NEAR_TIE
from tests.support.requests_and_truth import check_row as check_penalised


class Truth:
    """Knows a model's sections. `early`: of trackers, where worker and scheduler are in one process."""

    def __init__(self, tokenizer: Any, special: tuple[int, ...], early: int = 0) -> None:
        self.early = early
        self.sections = Sections.of(tokenizer)
        self.closers = closers_of(self.sections, tokenizer)
        self.special = special

    def at(self, asked: Any, prompt: list[int], output: list[int]) -> tuple[Any, Tracker | None, str]:
        """The penalty of the next token, a tracker that has read the output, and the section."""
        if not isinstance(asked, RequestPolicy):
            return asked, None, "none"
        tracker = Tracker(asked, self.sections, self.closers, prompt, self.early)
        for token in output:
            tracker.push(token)
        section = self.sections.read([*prompt, *output]).section
        return getattr(asked.policy, section), tracker, section

    def check_row(self, before: Any, after: Any, prompt: list[int], output: list[int], asked: Any, end: int) -> str:
        """One row of logits before and behind the processor; `end` is the token that a stop is forced with."""
        config, tracker, section = self.at(asked, prompt, output)
        forced = tracker and (end if tracker.stopped else tracker.forced)
        stays_masked = forced is not None and not tracker.stopped and before[forced] == -torch.inf
        if stays_masked or (tracker is not None and asked.shadow):
            assert torch.equal(before, after)
        elif forced is not None:
            want = torch.full_like(before, -torch.inf)
            want[forced] = after[forced]
            assert torch.equal(after, want)
            assert after[forced] > -torch.inf
            return "stopped" if tracker.stopped else "forced"
        elif before.min() == -torch.inf:  # a grammar, or an end that is still forbidden
            assert (after[before == -torch.inf] == -torch.inf).all()
        elif config is None:
            assert torch.equal(before, after)
        else:
            check_penalised(before, after, prompt, output, config, self.special)
        return section

    def would_change(self, before: Any, prompt: list[int], output: list[int], asked: Any) -> bool:
        """Whether the penalty, by the op alone, moves the most likely token."""
        config, _, _ = self.at(asked, prompt, output)
        if config is None:
            return False
        context = (prompt if config.include_prompt else []) + output
        config = replace(config, exempt_token_ids=(*config.exempt_token_ids, *self.special), include_prompt=True)
        tokens = torch.tensor([context or [len(before)]], dtype=torch.int32)
        return bool(apply_lz_penalty_(before.clone()[None], tokens, config=config)[0].argmax() != before.argmax())

    @torch.no_grad()
    def check_output(self, model: Any, prompt: list[int], fields: Any, output: list[int], server=ServerSettings()):  # noqa: B008
        """Every token of a greedy answer; returns how many were forced, and where penalties would have changed one.

        The token behind a stop is the engine's affair.
        """
        asked = server.settings_of(fields)
        logits = model(torch.tensor([prompt + output[:-1]])).logits[0, len(prompt) - 1 :]
        forced = changed = 0
        for i, token in enumerate(output):
            config, tracker, _ = self.at(asked, prompt, output[:i])
            if tracker is not None and tracker.stopped:
                break
            if tracker is not None and tracker.forced is not None:
                forced += 1
                assert token == tracker.forced
                continue
            scores = logits[i].tolist()
            if config is not None:
                settings = settings_of(replace(config, exempt_token_ids=(*config.exempt_token_ids, *self.special)))
                context = (prompt if config.include_prompt else []) + output[:i]
                penalised = reference.penalise(scores, context, strength=config.strength, **settings)
                changed += penalised.index(max(penalised)) != scores.index(max(scores))
                if tracker is None or not asked.shadow:
                    scores = penalised
            assert max(scores) - scores[token] < NEAR_TIE, f"token {i} is {token}; settings {fields}"
        return forced, changed
