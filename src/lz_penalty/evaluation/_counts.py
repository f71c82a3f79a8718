"""The baselines that count tokens, and the class of all baselines; `baselines` imports them all."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LogitsProcessor

from lz_penalty._checks import MAX_TOKEN_ID, integer, real
from lz_penalty.config import MAX_WEIGHT
from lz_penalty.errors import LZPenaltyError
from lz_penalty.evaluation._repeats import Rows, chunks, rows_of, wide

__all__ = [
    "Baseline",
    "FrequencyPenaltyLogitsProcessor",
    "PresencePenaltyLogitsProcessor",
    "RepetitionPenaltyLogitsProcessor",
]

MAX_LENGTH = 2**31 - 1


class Baseline(LogitsProcessor):
    """A penalty that depends on the history only.

    Args:
        pad_token_id: a leading run of this token is left out, for left-padded batches.
    """

    _leaves_out = 0  # leading tokens, pads included

    def __init__(self, pad_token_id: int | None = None) -> None:
        self.pad_token_id = integer(0, MAX_TOKEN_ID, optional=True)("pad_token_id", pad_token_id)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return a penalised copy of `scores [rows, vocab]` for the histories `input_ids [rows, length]`."""
        rows, length = input_ids.shape
        found = scores.clone()
        self.penalise_(found, input_ids, torch.full((rows,), length, device=input_ids.device))
        return found

    def penalise_(
        self,
        scores: torch.Tensor,
        tokens: torch.Tensor,
        ends: torch.Tensor,
        row_to_slot: torch.Tensor | None = None,
        starts: torch.Tensor | None = None,
    ) -> None:
        """Penalise the scores of many rows in place. Memory is bounded, however many rows there are.

        Args:
            scores: `[rows, vocab]`.
            tokens: `[slots, length]`, on the device of the scores.
            ends: `[rows]`: the history of a row is the first tokens of its slot, up to this number.
            row_to_slot: `[rows]`; by default every row has the slot of its number.
            starts: `[rows]`: how many leading tokens are left out.
        """
        begins = self._leaves_out if starts is None else starts.clamp(min=self._leaves_out)
        if tokens.shape[1]:
            self._penalise_rows_(scores, rows_of(tokens, ends, row_to_slot, begins, self.pad_token_id))

    def _penalise_rows_(self, scores: torch.Tensor, rows: Rows) -> None:
        raise NotImplementedError

    def request(self) -> dict[str, Any]:
        """Return the arguments of vLLM's `SamplingParams` that ask for this penalty."""
        raise NotImplementedError


class _CountPenalty(Baseline):
    """A penalty that depends on how often a token occurs."""

    def _new(self, old: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Return the new score of a token that occurs `counts` times, at least once."""
        raise NotImplementedError

    def _penalise_rows_(self, scores: torch.Tensor, rows: Rows) -> None:
        for part in chunks(len(scores), max(scores.shape[1] // 4, rows.tokens.shape[1])):
            self._penalise_part_(scores[part], rows.part(part))

    def _penalise_part_(self, scores: torch.Tensor, rows: Rows) -> None:
        given = rows.tokens.index_select(0, rows.slots).long()
        places = torch.arange(given.shape[1], device=given.device)
        counted = (given >= 0) & (given < scores.shape[1])  # a model may embed more ids than it can emit
        counted &= (places >= rows.begins[:, None]) & (places < rows.ends[:, None])
        # A token that is not counted becomes token 0 with weight 0: no index is out of range, and the host does not wait.
        tokens = given.masked_fill(~counted, 0)
        counts = torch.zeros(scores.shape, dtype=wide(scores), device=scores.device)
        counts = counts.scatter_add_(1, tokens, counted.to(counts.dtype)).gather(1, tokens)
        old, limits = scores.gather(1, tokens), torch.finfo(scores.dtype)
        new = self._new(old.to(counts.dtype), counts).clamp(limits.min, limits.max).to(old.dtype)
        scores.scatter_(1, tokens, torch.where((counts > 0) & old.isfinite(), new, old))  # equal places, equal scores


class RepetitionPenaltyLogitsProcessor(_CountPenalty):
    """The repetition penalty of transformers and vLLM: the scores of all tokens of the input are divided or multiplied.

        for token in set(input_ids):
            scores[token] = scores[token] * penalty if scores[token] < 0 else scores[token] / penalty

    Args:
        penalty: 0.01 to 100; below 1 it rewards.
        pad_token_id: a leading run of this token is left out. transformers' own processor counts it.

    >>> RepetitionPenaltyLogitsProcessor(2.0)(torch.tensor([[0, 2, 2]]), torch.tensor([[1.0, 1.0, -1.0]]))
    tensor([[ 0.5000,  1.0000, -2.0000]])
    """

    def __init__(self, penalty: float, *, pad_token_id: int | None = None) -> None:
        super().__init__(pad_token_id)
        self.penalty = real(0.01, MAX_WEIGHT)("penalty", penalty)

    def _new(self, old: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        return torch.where(old < 0, old * self.penalty, old / self.penalty)

    def request(self) -> dict[str, Any]:
        """Return the arguments of vLLM's `SamplingParams` that ask for this penalty."""
        return {"repetition_penalty": self.penalty}


class _OutputPenalty(_CountPenalty):
    """The common part of frequency and presence penalty, which can leave out the prompt."""

    def __init__(self, penalty: float, prompt_length: int | None = 0, *, pad_token_id: int | None = None) -> None:
        super().__init__(pad_token_id)
        self.penalty = real(-MAX_WEIGHT, MAX_WEIGHT)("penalty", penalty)
        self.prompt_length = integer(0, MAX_LENGTH, optional=True)("prompt_length", prompt_length) or 0
        self._leaves_out = self.prompt_length

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return a penalised copy of `scores [rows, vocab]` for the histories `input_ids [rows, length]`."""
        if input_ids.shape[1] < self.prompt_length:
            raise LZPenaltyError(
                f"prompt_length = {self.prompt_length}: the input has {input_ids.shape[1]} tokens only. Make a new "
                "processor for every prompt length, or count the prompt as well with prompt_length=None."
            )
        return super().__call__(input_ids, scores)


class FrequencyPenaltyLogitsProcessor(_OutputPenalty):
    """OpenAI's frequency penalty: a token loses `penalty` for each time it was generated.

        for token in set(input_ids[prompt_length:]):
            scores[token] -= penalty * input_ids[prompt_length:].count(token)

    Args:
        penalty: -100 to 100 (OpenAI allows -2 to 2); below 0 it rewards.
        prompt_length: how many leading columns are prompt and do not count, left pads included; 0 or `None` count the
            whole input.
        pad_token_id: a leading run of this token does not count, for left-padded batches with the prompt counted.

    >>> penalise = FrequencyPenaltyLogitsProcessor(0.5, prompt_length=1)
    >>> penalise(torch.tensor([[0, 2, 2, 1]]), torch.zeros(1, 3))
    tensor([[ 0.0000, -0.5000, -1.0000]])
    """

    def _new(self, old: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        return old - self.penalty * counts

    def request(self) -> dict[str, Any]:
        """Return the arguments of vLLM's `SamplingParams` that ask for this penalty. It does not count the prompt."""
        return {"frequency_penalty": self.penalty}


class PresencePenaltyLogitsProcessor(_OutputPenalty):
    """OpenAI's presence penalty: a token that was generated at all loses `penalty`, once.

        for token in set(input_ids[prompt_length:]):
            scores[token] -= penalty

    The arguments are those of `FrequencyPenaltyLogitsProcessor`.

    >>> penalise = PresencePenaltyLogitsProcessor(0.5, prompt_length=1)
    >>> penalise(torch.tensor([[0, 2, 2, 1]]), torch.zeros(1, 3))
    tensor([[ 0.0000, -0.5000, -0.5000]])
    """

    def _new(self, old: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        return old - self.penalty

    def request(self) -> dict[str, Any]:
        """Return the arguments of vLLM's `SamplingParams` that ask for this penalty. It does not count the prompt."""
        return {"presence_penalty": self.penalty}
