"""One call of `generate`: the processor that its settings ask for, and what is counted when it has ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from transformers import LogitsProcessorList
from transformers.generation.configuration_utils import GenerationMode

from lz_penalty.config import LZPenaltyConfig
from lz_penalty.engines._generation import count_loops
from lz_penalty.engines.server import server_settings
from lz_penalty.engines.transformers._policy import LZPolicyLogitsProcessor, needs_sections, until
from lz_penalty.engines.transformers._processor import LZPenaltyLogitsProcessor
from lz_penalty.errors import LZPenaltyError
from lz_penalty.policy import RequestPolicy, counters

__all__ = ["ONE_BY_ONE", "finish", "mask_of_prompt", "processor_of", "with_processor"]

ONE_BY_ONE = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE)  # these only append a token to every row


def processor_of(
    asked: LZPenaltyConfig | RequestPolicy, *, tokenizer: Any, only_appended: bool, **options: Any
) -> LZPenaltyLogitsProcessor:
    """Return the processor for a penalty or a policy.

    Args:
        asked: the settings.
        tokenizer: of the model; `None` if it is not known, which sections do not allow.
        only_appended: see `Rows`. Shadow mode needs it.
        options: as for `LZPenaltyLogitsProcessor`.
    """
    if isinstance(asked, LZPenaltyConfig):
        return LZPenaltyLogitsProcessor(asked, tokenizer=tokenizer, **options)
    if tokenizer is None and needs_sections(asked):
        raise LZPenaltyError(
            "a policy's sections are found by the tokenizer's markers: pass tokenizer=tokenizer to generate, or set "
            "model.lz_tokenizer."
        )
    if asked.shadow and not only_appended:
        raise LZPenaltyError("lz_shadow counts tokens as they are chosen: use it without beams and drafts.")
    return LZPolicyLogitsProcessor(asked, tokenizer=tokenizer, only_appended=only_appended, **options)


def mask_of_prompt(model: Any, mask: Any, prompt_length: int | None) -> Any:
    """Return the attention mask if it belongs to the ids that the processor will see, else `None`."""
    if model.config.is_encoder_decoder or (mask is not None and mask.shape[1:] != (prompt_length,)):
        return None
    return mask


def with_processor(given: Iterable[Any] | None, processor: LZPenaltyLogitsProcessor) -> LogitsProcessorList:
    """Return the caller's logits processors and ours, which `lz_*` settings asked for, in a new list."""
    others = list(given or ())
    if any(isinstance(one, LZPenaltyLogitsProcessor) for one in others):
        raise LZPenaltyError("lz_* settings and an LZPenaltyLogitsProcessor were given: use one of them.")
    return LogitsProcessorList([*others, processor])


def finish(processor: LZPenaltyLogitsProcessor | None, output: Any) -> Any:
    """Count what became of each row, put it on the output of `generate`, and return the output."""
    rows = getattr(output, "sequences", output)
    if processor is None or not isinstance(rows, torch.Tensor):
        return output
    if isinstance(processor, LZPolicyLogitsProcessor) and processor.asked.looks_for_runs:
        output.lz_outcomes = processor.outcomes(rows)
        for outcome in output.lz_outcomes:
            counters.add(outcome.counts)
    elif server_settings().count_loops:
        for row in rows[:, processor.prompt_length or 0 :].tolist():
            count_loops(until(row, processor.ends))
    return output
