"""Requests with a policy, followed on the host: the section each is in, and the token that must come next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from vllm.logger import init_logger

from lz_penalty.engines._requests import Settings
from lz_penalty.engines.server import VARIABLE, server_settings
from lz_penalty.engines.vllm._ending import Ending
from lz_penalty.engines.vllm._settings import tokenizer_of
from lz_penalty.errors import LZPenaltyError
from lz_penalty.policy import RequestPolicy, Sections, Tracker, closers_of, counters

__all__ = ["Followed", "Following", "force_"]

_LOGGER = init_logger("vllm.lz_penalty")  # so that vLLM shows it


class Following:
    """What all requests with a policy share.

    Args:
        vllm_config: of the engine.
        counted: slots whose requests this process counts and logs; other ranks count the others.
    """

    def __init__(self, vllm_config: Any, counted: range) -> None:
        tokenizer = tokenizer_of(vllm_config.model_config)
        try:
            self.sections = Sections.of(tokenizer)
            size = vllm_config.model_config.get_vocab_size()  # a tokenizer may have tokens that the model does not know
            closers = closers_of(self.sections, tokenizer)
            self.closers = {pair: ids for pair, ids in closers.items() if max(ids) < size}
        # Whatever a tokenizer that is not Hugging Face's may raise: who has no policy must start.
        except Exception as error:
            if isinstance(server_settings().default, RequestPolicy):
                raise LZPenaltyError(
                    f"{VARIABLE}: the default has a policy, but this model's tokenizer does not tell sections ({error!r}): "
                    "use lz_preset and its fields alone."
                ) from error
            _LOGGER.warning("sections cannot be told, so a policy's answer holds everywhere: %r", error)
            self.sections, self.closers = Sections([], ()), {}
        self.counted = counted
        # Then a worker has the scheduler's own SamplingParams, and can tell it how to end a request.
        self.shares_params = vllm_config.parallel_config.distributed_executor_backend == "uni"
        self.eos_token_id = getattr(tokenizer, "eos_token_id", None)
        if counted:
            counters.register()


class Followed:
    """One request with a policy.

    Args:
        following: what it shares with others.
        settings: its own.
        params: its sampling parameters.
        prompt: its token ids.
        slot: where it is.

    Attributes:
        settings: as given.
        shadow: whether nothing is to be changed.
        forced: the token that must come next, `None` for any.
        taken: tokens of the output that were read.
        steps: tokens chosen in shadow mode since it came.
    """

    def __init__(self, following: Following, settings: Settings, params: Any, prompt: Sequence[int], slot: int) -> None:
        assert settings.asked is not None
        self._counts = slot in following.counted
        self.settings = settings
        self.shadow = settings.asked.shadow
        self.steps = 0
        self._asked: RequestPolicy = settings.asked
        self._following = following
        self._ending = Ending(params, following.shares_params, following.eos_token_id)
        self._early = int(self._ending.by_run and not self.shadow)  # that way takes one more token of the run
        self._first: int | None = None  # tokens that it came with
        self.restart(prompt)
        self._counted = self._tracker.totals()

    def restart(self, prompt: Sequence[int]) -> None:
        """Forget the output; this is the prompt."""
        self._prompt = prompt
        self._tracker = Tracker(self._asked, self._following.sections, self._following.closers, prompt, self._early)
        self.taken = 0
        self.forced: int | None = None
        self._ends = False

    @property
    def line(self) -> np.ndarray:
        """The settings of the token to come."""
        return self.settings.lines[self._tracker.section]

    @property
    def is_first(self) -> bool:
        """Whether nothing has been chosen since it came: what is computed may be thrown away, its prompt not all read."""
        return self.taken == self._first

    def read(self, output: list[int]) -> bool:
        """Read what a live list has gained; whether `line` or `forced` may be another now."""
        fresh = len(output) - self.taken
        if fresh == 1 and self._first is not None:
            return self.push(output[-1])
        if fresh < 0:
            self.restart(self._prompt)
        return self.extend(output[self.taken :]) or fresh < 0

    def push(self, token: int) -> bool:
        """Read one token; whether `line` or `forced` may be another now."""
        self.taken += 1
        changed = self._tracker.push(token)
        if changed or self._ends:
            self._decide()
        return changed

    def extend(self, tokens: Sequence[int]) -> bool:
        """Read several tokens, or none; whether `line` or `forced` may be another now."""
        changed = [self.push(token) for token in tokens]
        if self._first is None:  # what a preempted request comes back with was counted before
            self._first, self._counted = self.taken, self._tracker.totals()
            return True
        return any(changed)

    def ahead(self, drafts: Sequence[int]) -> list[tuple[np.ndarray, int | None]]:
        """`line` and `forced` now and behind each of these tokens, none of which is kept."""
        found = [(self.line, self._next())]
        for token in drafts:
            self.taken += 1
            self._tracker.push(token)
            found.append((self.line, self._next()))
        self._tracker.rewind(len(drafts))
        self.taken -= len(drafts)
        return found

    # ------------------------------------------------------------ what must come next

    @property
    def overrides_masks(self) -> bool:
        """Whether the forced token must come even if it is masked."""
        return self._ends and self._ending.overrides_masks

    def _next(self) -> int | None:
        """The token that must come next, `None` for any."""
        run = self._tracker.stopped
        return self._tracker.forced if run is None else self._ending.token(run, self.taken)

    def _decide(self) -> None:
        """Note what must come next; where that is the end, make sure that vLLM ends the request."""
        run, self._ends, ended = self._tracker.stopped, self._tracker.stopped is not None, self._ends
        if run is not None:
            self._ending.wait(run, self.taken)
        self.forced = self._next()
        if run is None or ended:
            return
        self._ending.begin(run)
        if self._counts:
            can = "cannot be ended, having no stop token and ignoring EOS" if self.forced is None else "is ended"
            _LOGGER.info("a request %s: %.4g copies of %d tokens; %s", can, run.copies, run.period, self._name)

    # ------------------------------------------------------------ what is counted

    @property
    def _name(self) -> str:
        """All that is known: vLLM does not tell a processor the request's id."""
        return f"prompt of {len(self._prompt)} tokens, output of {self.taken}"

    def settle(self, changed: int = 0) -> None:
        """Add what has happened since the last time to the counters, and say it in the log.

        Args:
            changed: tokens that the penalty would have changed, in shadow mode.
        """
        if not self._counts:
            return
        totals = self._tracker.totals()
        amounts = {name: number - self._counted[name] for name, number in totals.items()}
        self._counted = totals
        if self.shadow:
            amounts |= {"lz_shadow_steps": self.steps, "lz_shadow_changed": changed}
            self.steps = 0
        counters.add(amounts)
        if any(amounts.values()):
            _LOGGER.info("a request with a policy: %s; %s", amounts, self._name)


def force_(logits: torch.Tensor, row: int, token: int, *, overrides_masks: bool = False) -> None:
    """Leave a row of logits `[rows, vocab]` only one token, in place; none if that is masked or no token. Nothing waits."""
    if not 0 <= token < logits.shape[1]:  # a request may name any id as its stop token
        return
    line = logits[row]
    if overrides_masks:
        line.fill_(-torch.inf)
        line[token].fill_(0.0)
    else:
        kept = line[token].clone()
        line.masked_fill_(kept > -torch.inf, -torch.inf)
        line[token] = kept
