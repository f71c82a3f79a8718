"""`EndThinkingLogitsProcessor`: ends thinking that repeats itself in spite of the penalty, by the model's own marker.

The rung between the penalty and `engines.stopping.RepetitionStoppingCriteria`; each works without the others.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch
from transformers import LogitsProcessor

from lz_penalty.checks import MAX_TOKEN_ID, integer
from lz_penalty.detection import Repetition, RepetitionDetector, repetition_at_end
from lz_penalty.detection.online import MAX_PERIOD, Thresholds
from lz_penalty.engines.transformers.policy import RowStates
from lz_penalty.errors import LZPenaltyError
from lz_penalty.policy import Sections, State, closers_of
from lz_penalty.policy.tracking import MAX_CLOSER

__all__ = ["EndThinkingLogitsProcessor"]


class EndThinkingLogitsProcessor(LogitsProcessor):
    """Forces the end-of-thinking marker, token by token, when what is thought is a run of adjacent copies.

        for done in reversed(range(len(marker))):
            thought = row without its last `done` tokens
            if thought is in thinking, ends with a run over the threshold, and the last tokens are marker[:done]:
                force marker[done]

    A pure function of the ids it is called with. Put it behind the penalty.

    Args:
        prompt_length: where the prompt ends, left padding included: what is before is not counted.
        tokenizer: of the model; its end-of-thinking marker is forced.
        sections: instead of those of the tokenizer; share them with the policy's processor.
        max_period: length of the longest unit.
        min_copies: a real number, at least 3; the last copy counts by the part of it that is there.
        min_length: tokens that the run must have in all.
    """

    def __init__(
        self,
        prompt_length: int,
        *,
        tokenizer: Any,
        sections: Sections | None = None,
        max_period: int = MAX_PERIOD,
        min_copies: float = 10,
        min_length: int = 16,
    ) -> None:
        self.prompt_length = integer(0, MAX_TOKEN_ID)("prompt_length", prompt_length)
        self._reach = Thresholds.of(max_period, min_copies, min_length).reach
        self._limits: dict[str, Any] = {"max_period": max_period, "min_copies": min_copies, "min_length": min_length}
        self.rows = RowStates(sections or Sections.of(tokenizer))
        self._markers = closers_of(self.rows.sections, tokenizer)
        self._longest = max(map(len, self._markers.values()), default=0)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return scores `[rows, vocab]` that leave only the marker's next token to rows that are to end their thinking."""
        self.rows.of(input_ids, None)
        tail = input_ids[:, max(self.prompt_length, input_ids.shape[1] - self._reach - MAX_CLOSER) :].cpu().numpy()
        forced = [self._forced(row, tokens) for row, tokens in enumerate(tail)]
        if any(token is not None for token in forced):
            scores = scores.clone()
            for row, token in enumerate(forced):
                if token is not None:
                    scores[row] = -torch.inf
                    scores[row, token] = 0.0
        return scores

    def ended(self, token_ids: Any) -> Repetition | None:
        """The run for which the thinking in one row of the output was ended, its start counted from the prompt's end."""
        ids = [int(token) for token in token_ids]
        state = self.rows.sections.read(ids[: self.prompt_length])
        detector = RepetitionDetector(max_rewind=0, **self._limits)
        for token in ids[self.prompt_length :]:
            state = self.rows.sections.advance(state, token)
            found = detector.push(token)
            if found and self._closer(state):
                return found
        return None

    def _forced(self, row: int, tokens: npt.NDArray[Any]) -> int | None:
        """The token that this row must go on with, if any. A marker under way comes first: it may prolong the run."""
        for done in reversed(range(min(self._longest, len(tokens)))):
            marker = self._closer(self.rows.before(row, done))
            thought, written = tokens[: len(tokens) - done], tokens[len(tokens) - done :]
            is_next = done < len(marker) and tuple(written.tolist()) == marker[:done]
            if is_next and repetition_at_end(thought, **self._limits):
                return marker[done]
        return None

    def _closer(self, state: State) -> tuple[int, ...]:
        """The marker that ends the thinking of this state; empty where it is not thinking, or only a turn's end does."""
        return self._markers.get(getattr(state.place, "pair", None), ())  # type: ignore[arg-type]

    @property
    def supports_continuous_batching(self) -> bool:  # type: ignore[override]
        """Asked by continuous batching, which would hand over only the last token."""
        raise LZPenaltyError(
            "continuous batching hands a processor only the last token of each request, so thinking could not be ended: "
            "use generate without it."
        )
