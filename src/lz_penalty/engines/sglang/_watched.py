"""Requests with a policy, a ladder or shadow mode, on the host: where their text is, and when it must end.

SGLang calls `Req.update_finish_state` with every token that it keeps; for these requests alone, it calls `Watched` there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from http import HTTPStatus
from typing import Any

from sglang.srt.managers.schedule_batch import FINISH_ABORT, BaseFinishReason
from sglang.srt.runtime_context import get_parallel

from lz_penalty.errors import LZPenaltyError
from lz_penalty.policy import RequestPolicy, Sections, Tracker, closers_of, counters

__all__ = ["REPETITION", "Watched"]

REPETITION = "lz_repetition"  # what the finish reason of a stopped request says was matched


class _FinishRepetition(BaseFinishReason):
    """The ladder's last rung; of type "stop", the nearest that OpenAI's API knows."""

    def to_json(self) -> dict[str, Any]:
        return {"type": "stop", "matched": REPETITION}


class Watched:
    """Follows the output of one request.

    Args:
        req: SGLang's `Req`, which calls `after_token` from now on.
        asked: its policy, ladder and shadow mode.
        tokenizer: the model's.

    Attributes:
        section: of the token to come; its number in `lz_penalty.policy.SECTIONS`.
        forced: the token that must come, if any.
        length: how many tokens, the prompt's among them, the host knows.
        shadow: whether the penalty is only counted.
        would_differ: in shadow mode, says whether the penalty would have changed the token that was sampled last.
    """

    def __init__(self, req: Any, asked: RequestPolicy, tokenizer: Any) -> None:
        reading = _reading(tokenizer)
        if isinstance(reading, str):
            raise LZPenaltyError(reading)
        self._new_tracker = partial(Tracker, asked, *reading, req.origin_input_ids)
        self._reports = bool(asked.ladder) or asked.shadow
        self._prompt = len(req.origin_input_ids)
        self._req = req
        self.shadow = asked.shadow
        self.would_differ: Callable[[], bool] | None = None
        self._begin()
        req.update_finish_state = self.after_token

    def _begin(self) -> None:
        self._tracker = self._new_tracker()
        self.section, self.forced = self._tracker.section, self._tracker.forced
        self.length = self._prompt
        self._differed = 0

    def resume(self) -> None:
        """Called when a prefill ends: with input embeddings, SGLang throws the output of a retracted request away."""
        if self._req is not None and self._prompt + len(self._req.output_ids) < self.length:
            self._begin()

    def late(self, length: int) -> None:
        """A token is sampled that has `length` before it, and the host knows less: end the request, if it has not ended."""
        if self._req is not None:
            self._req.to_finish = FINISH_ABORT(
                f"lz_*: SGLang samples a token behind {length} others when the host knows {self.length}, so the policy would "
                "be late. Leave policy fields out, and report how you started SGLang.",
                HTTPStatus.INTERNAL_SERVER_ERROR,
                "InternalServerError",
            )

    def after_token(self, *args: Any, **kwargs: Any) -> None:
        """In place of `Req.update_finish_state`: SGLang's own, then read what is new, and end the request if it repeats."""
        req, tracker = self._req, self._tracker
        type(req).update_finish_state(req, *args, **kwargs)
        for token in req.output_ids[self.length - self._prompt :]:
            self.length += 1
            if tracker.push(token):
                self.section, self.forced = tracker.section, tracker.forced
                if tracker.stopped is not None and not req.finished():
                    req.finished_reason = _FinishRepetition()
            if self.would_differ is not None:
                self._differed += self.would_differ()
                self.would_differ = None
        if req.finished():
            self._end(req)

    def _end(self, req: Any) -> None:
        """Count what happened, in total and for the request: in its finish reason, which may hold numbers."""
        del req.update_finish_state
        self._req = None
        if not self._reports:
            return
        found: dict[str, Any] = self._tracker.totals()
        if self.shadow:
            found |= {"lz_shadow_steps": self.length - self._prompt, "lz_shadow_changed": self._differed}
        if get_parallel().attn_tp_rank == 0 and get_parallel().attn_cp_rank == 0:  # the other ranks count the same
            counters.add(found)
        run = self._tracker.stopped
        if run is not None:
            found[REPETITION] = [run.start, run.period, run.length]
        reason = req.finished_reason.to_json() | found
        req.finished_reason.to_json = lambda: reason


@lru_cache(maxsize=1)
def _reading(tokenizer: Any) -> tuple[Sections, Any] | str:
    """How outputs of this model are read, or why they cannot be: either is found out once."""
    if tokenizer is None:
        return "policies need the tokenizer: start the server without --skip-tokenizer-init."
    try:
        sections = Sections.of(tokenizer)
        return sections, closers_of(sections, tokenizer)
    except Exception as error:  # classes of tokenizers are many, and the server must live on
        return f"policies: the tokenizer cannot be read ({type(error).__name__}: {error})."
