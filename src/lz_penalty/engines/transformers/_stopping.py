"""Hugging Face transformers: end a sequence of `generate` when it repeats itself.

    from lz_penalty.engines.transformers import RepetitionStoppingCriteria
    criteria = RepetitionStoppingCriteria(inputs.input_ids.shape[1])
    output = model.generate(**inputs, stopping_criteria=[criteria])
    [criteria.repetition(row) for row in output]         # the run that ended each row, or None

For other engines and plain loops: `lz_penalty.detection.RepetitionDetector` and `stop_on_repetition`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import StoppingCriteria

from lz_penalty._checks import MAX_TOKEN_ID, boolean, integer
from lz_penalty.detection import Repetition, StructuralRun, find_structure, repetition_at_end
from lz_penalty.detection._online import MAX_PERIOD, Thresholds
from lz_penalty.detection._tandem import DEGENERATE_COPIES, STOP_LENGTH
from lz_penalty.errors import LZPenaltyError

__all__ = ["RepetitionStoppingCriteria"]

STRUCTURE_TOKENS, STRUCTURE_EVERY = 1_024, 16  # how many tokens are examined for a frame, and how often


class RepetitionStoppingCriteria(StoppingCriteria):
    """Stop each row of a batch that ends with a run of adjacent copies (see `RepetitionDetector`).

    It stores nothing between calls. So one object serves any number of `generate` calls with prompts of the same length,
    and it supports beams and assisted decoding. `generate` pads stopped rows while other rows continue, but only for
    models that have an end-of-sequence token.

    Args:
        prompt_length: the length of the prompt with its left padding; these tokens are not counted.
        include_prompt: count the prompt too; `prompt_length` is then not needed.
        pad_token_id: with `include_prompt`, left padding is not counted; `repetition` ignores padding at the end.
        max_period: length of the longest unit.
        min_copies: a real number, at least 3; an incomplete last copy counts as a fraction.
        min_length: the least number of tokens in the run. Lists of equal values are runs too: docs/detection.md.
        tokenizer: with a tokenizer, a row also stops if its text repeats a frame with other words or numbers
            (`lz_penalty.detection.find_structure`). Its last 1,024 tokens are examined at every 16th token. Long tables and
            lists of tests are stopped too.
    """

    def __init__(
        self,
        prompt_length: int | None = None,
        *,
        include_prompt: bool = False,
        pad_token_id: int | None = None,
        max_period: int = MAX_PERIOD,
        min_copies: float = DEGENERATE_COPIES,
        min_length: int = STOP_LENGTH,
        tokenizer: Any = None,
    ) -> None:
        self.prompt_length = integer(0, MAX_TOKEN_ID, optional=True)("prompt_length", prompt_length)
        self.include_prompt = boolean("include_prompt", include_prompt)
        self.pad_token_id = integer(0, MAX_TOKEN_ID, optional=True)("pad_token_id", pad_token_id)
        if prompt_length is None and not include_prompt:
            raise LZPenaltyError(
                "prompt_length is missing: pass inputs.input_ids.shape[1], so that the prompt is not counted, or "
                "include_prompt=True."
            )
        self._reach = Thresholds.of(max_period, min_copies, min_length).reach
        self.tokenizer = tokenizer
        self._limits: dict[str, Any] = {"max_period": max_period, "min_copies": min_copies, "min_length": min_length}

    def __call__(self, input_ids: torch.Tensor, scores: Any = None, **kwargs: Any) -> torch.Tensor:
        """Return which rows of `input_ids [rows, length]` must stop, as a bool tensor `[rows]`."""
        first = max(self._start, input_ids.shape[1] - self._reach)
        rows = input_ids[:, first:].cpu().numpy()
        ended = [repetition_at_end(self._unpadded(row), **self._limits) is not None for row in rows]
        if self.tokenizer is not None and input_ids.shape[1] % STRUCTURE_EVERY == 0:
            recent = input_ids[:, max(self._start, input_ids.shape[1] - STRUCTURE_TOKENS) :].cpu().numpy()
            ended = [one or self._structure(row) is not None for one, row in zip(ended, recent, strict=True)]
        return torch.tensor(ended, dtype=torch.bool, device=input_ids.device)

    def _structure(self, row: npt.NDArray[Any]) -> StructuralRun | None:
        return find_structure(self.tokenizer.decode(self._unpadded(row), skip_special_tokens=True))

    def repetition(self, token_ids: Any) -> Repetition | StructuralRun | None:
        """Return what one row of the output repeats at its end, or `None`. Its start counts from the end of the prompt.

        The start of a repeated frame is a number of characters in the text of the last 1,024 tokens.
        """
        row = np.asarray(token_ids.cpu() if isinstance(token_ids, torch.Tensor) else token_ids)[self._start :]
        if self.pad_token_id is not None:
            kept = np.flatnonzero(row != self.pad_token_id)
            row = row[: kept[-1] + 1 if len(kept) else 0]
        found = repetition_at_end(self._unpadded(row), **self._limits)
        if found is not None or self.tokenizer is None:
            return found
        return self._structure(row[-STRUCTURE_TOKENS:])

    @property
    def _start(self) -> int:
        return 0 if self.include_prompt else self.prompt_length or 0

    def _unpadded(self, row: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the row without left padding, which can occur only with `include_prompt`."""
        if not self.include_prompt or self.pad_token_id is None:
            return row
        kept = np.flatnonzero(row != self.pad_token_id)
        return row[kept[0] if len(kept) else len(row) :]
