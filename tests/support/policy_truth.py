"""State what a request with a policy, a ladder or shadow mode must do. The tests of every engine compare with this module.

Everything is recomputed from the text with public functions: the sections are read from the first token of the prompt, runs
are looked for in the whole output, and penalties come from `lz_penalty.reference`. Grammars and scripts of the tests are
passed as a mask; they belong to the tests of their engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from lz_penalty import LZPenaltyConfig
from lz_penalty.detection import Repetition, repetition_at_end
from lz_penalty.policy import Asked, Ladder, RequestPolicy, Sections, closers_of
from tests.support.requests_and_truth import NEAR_TIE, check_row, penalised

RUNG_LENGTH = 16  # tokens: a shorter run does not count for the ladder
LEAST_COPIES = 3  # fewer copies are never looked for

Mask = Callable[
    [list[int], list[float]], list[float]
]  # (output so far, scores) -> scores with forbidden tokens at -inf


class Step(NamedTuple):
    """What must hold for the next token of a sequence.

    Attributes:
        section: the section of the token; "none" for a request without a policy.
        config: the penalty of the token, or `None`.
        forced: the token that must come next, or `None`.
        marker_begins: whether `forced` is the first token of an end-of-thinking marker.
        stopped: the run for which the sequence must have ended before this token, or `None`.
    """

    section: str
    config: LZPenaltyConfig | None
    forced: int | None = None
    marker_begins: bool = False
    stopped: Repetition | None = None


@dataclass
class Checked:
    """What happened in an output that was checked.

    Attributes:
        tokens: how many tokens were checked: all, or those before the sequence had to end.
        stopped: the run for which the sequence had to end, or `None`.
        ends: the positions in the output at which an end-of-thinking marker began.
        seen: counts of tokens: one per section; "turns", where the section changed; "forced"; "would differ", where the
            penalty changes the most likely token; "unsure", where rounding can change that; "near-ties", where the engine
            chose another of several tokens that are almost equally likely.
    """

    tokens: int = 0
    stopped: Repetition | None = None
    ends: list[int] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)


class Truth:
    """Recompute what must happen in requests to one model.

    Args:
        tokenizer: the tokenizer of the model.
        special: ids that are exempt from every penalty.
        sections: the sections of the model, where they are not the tokenizer's; with one pair of thinking markers.
        stop_adds: 1 where the engine ends a run by writing its last token (see `Tracker`), else 0.
    """

    def __init__(
        self, tokenizer: Any, special: tuple[int, ...], sections: Sections | None = None, stop_adds: int = 0
    ) -> None:
        self.special = special
        self.stop_adds = stop_adds
        self.sections = sections or Sections.of(tokenizer)
        (self._marker,) = closers_of(self.sections, tokenizer).values()
        self._climbed = lru_cache(maxsize=None)(self._climb)

    def step(self, asked: Asked, prompt: list[int], output: list[int]) -> Step:
        """Return what must hold for the token after `prompt` and `output`."""
        if not isinstance(asked, RequestPolicy):
            return Step("none", asked)
        section = self.sections.read([*prompt, *output]).section
        config = getattr(asked.policy, section)
        if asked.shadow or not asked.ladder:
            return Step(section, config)
        written, stopped = self._climbed(asked.ladder, self.stop_adds, tuple(prompt), tuple(output))
        forced = None if written in (None, len(self._marker)) else self._marker[written]
        return Step(section, config, forced, written == 0, stopped)

    def _climb(
        self, ladder: Ladder, stop_adds: int, prompt: tuple[int, ...], output: tuple[int, ...]
    ) -> tuple[int | None, Repetition | None]:
        """Return how many tokens of a marker under way are written (`None` without one), and the run that stops."""
        if not output:
            return None, None
        written, stopped = self._climbed(ladder, stop_adds, prompt, output[:-1])
        thinking = self.sections.read(prompt + output).section == "thinking"
        if written is not None:  # a token that is not the marker's next one begins the marker anew
            goes_on = output[-1:] == self._marker[written : written + 1]
            written = written + 1 if goes_on else int(output[-1] == self._marker[0])
            written = written if thinking else None
        if thinking and written is None and ladder.end_thinking_copies:
            stop_adds = 0
            if _run(output, ladder.end_thinking_copies):
                return 0, stopped
        if not stopped and not written:
            stopped = _run(output, ladder.stop_copies, stop_adds)
        return written, stopped

    def check_row(
        self, before: Any, after: Any, prompt: list[int], output: list[int], asked: Asked, end: int | None = None
    ) -> str:
        """Check one row of logits before and after the processor.

        Args:
            before: the logits before the processor.
            after: the logits after it.
            prompt: the ids of the prompt.
            output: the ids of the output so far.
            asked: what the request asks for.
            end: the token with which the engine ends a sequence.

        Returns:
            The section, "none" without a policy, or "forced" or "stopped".
        """
        step = self.step(asked, prompt, output)
        forced = end if step.stopped else step.forced
        masked = forced is not None and not step.stopped and before[forced] == -torch.inf  # by a grammar, which wins
        if masked or (isinstance(asked, RequestPolicy) and asked.shadow):
            assert torch.equal(before, after)
        elif forced is not None:
            want = torch.full_like(before, -torch.inf)
            want[forced] = after[forced]
            assert torch.equal(after, want)
            assert after[forced] > -torch.inf
            return "stopped" if step.stopped else "forced"
        elif before.min() == -torch.inf:  # a grammar, or an end that is still forbidden
            assert (after[before == -torch.inf] == -torch.inf).all()
        elif step.config is None:
            assert torch.equal(before, after)
        else:
            check_row(before, after, prompt, output, step.config, self.special)
        return step.section

    def would_change(self, before: Any, prompt: list[int], output: list[int], asked: Asked) -> bool:
        """Return whether the penalty changes the most likely token."""
        config = self.step(asked, prompt, output).config
        scores = before.tolist()
        return _best(penalised(scores, prompt, output, config, self.special)) != _best(scores)

    @torch.no_grad()
    def check_output(
        self, model: Any, prompt: list[int], asked: Asked, output: list[int], mask: Mask | None = None
    ) -> Checked:
        """Check every token of a greedy output, up to where the sequence must end.

        Args:
            model: the model in transformers, in float32.
            prompt: the ids of the prompt.
            asked: what the request asks for.
            output: the ids of the output.
            mask: what a grammar or a script forbids.
        """
        logits = model(torch.tensor([prompt + output[:-1]])).logits[0, len(prompt) - 1 :].tolist()
        checked = Checked()
        before = None
        for i, token in enumerate(output):
            step = self.step(asked, prompt, output[:i])
            if step.stopped:
                break
            checked.seen[step.section] += 1
            checked.seen["turns"] += step.section != (before or step).section
            before = step
            self._check_token(checked, logits[i], prompt, output[:i], token, asked, step, mask)
            checked.tokens += 1
        checked.stopped = self.step(asked, prompt, output[: checked.tokens]).stopped
        return checked

    def _check_token(
        self,
        checked: Checked,
        scores: list[float],
        prompt: list[int],
        output: list[int],
        token: int,
        asked: Asked,
        step: Step,
        mask: Mask | None,
    ) -> None:
        if step.forced is not None:
            assert token == step.forced, f"token {len(output)} is {token}, must be {step.forced} of the marker"
            checked.seen["forced"] += 1
            checked.ends += [len(output)] if step.marker_begins else []
            return
        changed = penalised(scores, prompt, output, step.config, self.special)
        checked.seen["would differ"] += _best(changed) != _best(scores)
        checked.seen["unsure"] += min(_margin(scores), _margin(changed)) < NEAR_TIE
        if not (isinstance(asked, RequestPolicy) and asked.shadow):
            scores = changed
        if mask is not None:
            scores = mask(output, scores)
        gap = max(scores) - scores[token]
        assert gap < NEAR_TIE, f"token {len(output)} is {token}, {gap:.4f} below the best; asked for {asked}"
        checked.seen["near-ties"] += gap > 0


def _run(output: tuple[int, ...], copies: float | None, stop_adds: int = 0) -> Repetition | None:
    """Return the run of at least `copies` copies at the end of the output, which may lack `stop_adds` tokens."""
    if copies is None:
        return None
    least = max(LEAST_COPIES, copies - stop_adds)
    run = repetition_at_end(list(output), min_copies=least, min_length=RUNG_LENGTH - stop_adds)
    return run if run and (run.length + stop_adds) / run.period >= copies else None


def _best(scores: list[float]) -> int:
    return scores.index(max(scores))


def _margin(scores: list[float]) -> float:
    second, first = sorted(scores)[-2:]
    return first - second
