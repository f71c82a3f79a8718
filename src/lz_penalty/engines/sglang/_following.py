"""Requests that are followed on the host: those with a policy, and where the server counts loops, all penalised ones.

SGLang calls `Req.update_finish_state` with every token that it keeps. For these requests alone, `Follower` replaces it.
"""

from __future__ import annotations

from functools import lru_cache
from http import HTTPStatus
from typing import Any

from sglang.srt.managers.schedule_batch import FINISH_ABORT, BaseFinishReason
from sglang.srt.runtime_context import get_parallel

from lz_penalty.engines._generation import LOOPS_ONLY, NO_SECTIONS, Generation, Reading, reading_of
from lz_penalty.errors import LZPenaltyError
from lz_penalty.policy import RequestPolicy

__all__ = ["REPETITION", "Follower", "generation_of"]

REPETITION = "lz_repetition"  # `matched` in the finish reason of a stopped request


class _FinishRepetition(BaseFinishReason):
    """The finish reason of a stopped request. Its type is "stop", the nearest that OpenAI's API knows."""

    def to_json(self) -> dict[str, Any]:
        return {"type": "stop", "matched": REPETITION}


def generation_of(req: Any, asked: RequestPolicy, tokenizer: Any) -> Generation:
    """Return the generation of a request with a policy.

    Raises:
        LZPenaltyError: the server has no tokenizer that can be read.
    """
    reading = _reading(tokenizer)
    if isinstance(reading, str):
        raise LZPenaltyError(reading)
    return Generation(reading, asked, req.origin_input_ids)


@lru_cache(maxsize=1)
def _reading(tokenizer: Any) -> Reading | str:
    """Return how outputs of this model are read, or why they cannot be. Either is found out once."""
    if tokenizer is None:
        return "policies need the tokenizer: start the server without --skip-tokenizer-init."
    try:
        return reading_of(tokenizer)
    except Exception as error:  # classes of tokenizers are many, and the server must live on
        return f"policies: the tokenizer cannot be read ({type(error).__name__}: {error})."


class Follower:
    """Follows the output of one request: reads its tokens, ends it if the ladder says so, and counts it.

    Args:
        req: SGLang's `Req`, which calls `after_token` from now on.
        generation: of a request with a policy, else `None`.
        count_loops: count the loops in the output. A policy with a ladder or in shadow mode does so anyway.
    """

    def __init__(self, req: Any, generation: Generation | None, count_loops: bool) -> None:
        self._req = req
        self._generation = generation
        self._reports = generation is not None and generation.asked.looks_for_runs
        self._all = [] if generation is None else [generation]
        if count_loops and not self._reports:
            self._all.append(Generation(NO_SECTIONS, LOOPS_ONLY, ()))
        req.update_finish_state = self.after_token

    def restart_if_lost(self) -> None:
        """Begin again if SGLang has thrown the output of a retracted request away, as with input embeddings."""
        if self._req is not None and len(self._req.output_ids) < self._all[0].length:
            for generation in self._all:
                generation.restart(generation.prompt)

    def late(self, length: int) -> None:
        """End the request: a token is sampled after `length` others, and the host knows fewer."""
        if self._req is not None and self._generation is not None:
            known = len(self._generation.prompt) + self._generation.length
            self._req.to_finish = FINISH_ABORT(
                f"lz_*: SGLang samples a token after {length} others when the host knows {known}, so the policy would "
                "be late. Leave policy fields out, and report how you started SGLang.",
                HTTPStatus.INTERNAL_SERVER_ERROR,
                "InternalServerError",
            )

    def after_token(self, *args: Any, **kwargs: Any) -> None:
        """Do what `Req.update_finish_state` does, read the new tokens, and end the request if the ladder says so."""
        req = self._req
        type(req).update_finish_state(req, *args, **kwargs)
        for generation in self._all:
            generation.extend(req.output_ids[generation.length :])
        if self._all[0].stopped is not None and not req.finished():
            req.finished_reason = _FinishRepetition()
        if req.finished():
            self._end(req)

    def _end(self, req: Any) -> None:
        """Add what happened to the counters and, with a ladder or in shadow mode, to the finish reason."""
        del req.update_finish_state
        self._req = None
        found: dict[str, Any] = self._all[0].totals()
        if (
            get_parallel().attn_tp_rank == 0 and get_parallel().attn_cp_rank == 0
        ):  # the other ranks would count the same
            for generation in self._all:
                generation.count()
        if self._reports:
            run = self._all[0].stopped
            if run is not None:
                found[REPETITION] = [run.start, run.period, run.length]
            reason = req.finished_reason.to_json() | found
            req.finished_reason.to_json = lambda: reason
