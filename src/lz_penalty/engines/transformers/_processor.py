"""`LZPenaltyLogitsProcessor`: turns the ids that `generate` passes into (tokens, starts) for the op."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import LogitsProcessor

from lz_penalty._checks import MAX_TOKEN_ID, integer
from lz_penalty.config import LZPenaltyConfig
from lz_penalty.engines._prompt import LearnedPrompt
from lz_penalty.engines._special_tokens import exempting, special_token_ids
from lz_penalty.engines.transformers._assistants import IN_ANOTHER_VOCABULARY
from lz_penalty.errors import LZPenaltyError, show
from lz_penalty.ops import apply_lz_penalty_
from lz_penalty.policy._vocabulary import text_tokenizer

__all__ = ["LZPenaltyLogitsProcessor", "ends_of"]


class LZPenaltyLogitsProcessor(LogitsProcessor):
    """Adds the LZ penalty to the scores of `generate`.

    It depends only on the ids, and on where the prompt ends, which it learns from the first call.

    Args:
        config: the settings. At each step the penalty sees all tokens so far, except left padding.
        pad_token_id: the token of left padding. Only the leading run of it is left out, since it often is the
            end-of-sequence token too. Taken from the tokenizer or model config if one is given.
        tokenizer: its special tokens are exempt (see `special_token_ids`).
        model_config: a model or generation config. Its special tokens are exempt too.
        attention_mask: `[prompts, length]`, the mask of the prompts. Its leading zeros are the left padding, whatever the
            tokens are. Rows of beams and of `num_return_sequences` have the mask of their prompt.
        penalise_special_tokens: do not exempt them.
        prompt_length: where the prompt ends, padding included; used if the config has `include_prompt=False`. `None`: learn
            it from the first call of each generation (see `LearnedPrompt`).
    """

    def __init__(
        self,
        config: LZPenaltyConfig,
        pad_token_id: int | None = None,
        *,
        tokenizer: Any = None,
        model_config: Any = None,
        attention_mask: torch.Tensor | None = None,
        penalise_special_tokens: bool = False,
        prompt_length: int | None = None,
    ) -> None:
        if not isinstance(config, LZPenaltyConfig):
            raise LZPenaltyError(
                f"config = {show(config)}: must be an LZPenaltyConfig, such as LZPenaltyConfig.guarded()."
            )
        self.special = () if penalise_special_tokens else special_token_ids(tokenizer, model_config)
        self.config = exempting(config, self.special)
        self.tokenizer = tokenizer
        self.pad_token_id = integer(0, MAX_TOKEN_ID, optional=True)("pad_token_id", pad_token_id)
        for source in (text_tokenizer(tokenizer), model_config):
            if self.pad_token_id is None:
                self.pad_token_id = getattr(source, "pad_token_id", None)
        self.prompt_length = integer(0, 2**31 - 1, optional=True)("prompt_length", prompt_length)
        self._learned: dict[torch.device, LearnedPrompt] = {}
        self.ends = ends_of(tokenizer, model_config, self.pad_token_id)
        self.padding = None if attention_mask is None else (attention_mask.cumsum(1) == 0).sum(1)

    def __repr__(self) -> str:
        shown = f"{self.config}, pad_token_id={self.pad_token_id}, prompt_length={self.prompt_length}"
        if self.padding is not None:
            shown += f", padding={self.padding.tolist()}"
        return f"LZPenaltyLogitsProcessor({shown})"

    @torch.compiler.disable  # ids are data, not constants of a graph; inside a compiled function this is a graph break
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return penalised scores `[rows, vocab]` for the contexts `input_ids [rows, length]`."""
        if IN_ANOTHER_VOCABULARY.get():
            return scores
        if not (isinstance(input_ids, torch.Tensor) and isinstance(scores, torch.Tensor) and input_ids.ndim == 2):
            given = (f"{type(one).__name__} {list(getattr(one, 'shape', []))}" for one in (input_ids, scores))
            raise LZPenaltyError(
                f"input_ids and scores are {' and '.join(given)}: must be torch tensors [rows, length] and [rows, vocab]."
            )
        penalised = scores.clone()  # in place would corrupt `output_logits`
        apply_lz_penalty_(penalised, input_ids, config=self.config, starts=self._starts(input_ids))
        return penalised

    def _starts(self, input_ids: torch.Tensor) -> torch.Tensor | None:
        """Return where each row's context begins: after its left padding, or after the prompt."""
        if self.config.include_prompt:
            return self._after_padding(input_ids)
        return self._prompt_ends(input_ids)

    def _after_padding(self, input_ids: torch.Tensor) -> torch.Tensor | None:
        rows, length = input_ids.shape
        if self.padding is not None:
            return self._padding_of(rows, input_ids.device)
        if self.pad_token_id is None or not length:
            return None
        if input_ids.device.type != "cpu":  # where looking would mean waiting
            return (input_ids == self.pad_token_id).long().cumprod(dim=1).sum(dim=1)
        ids = input_ids.numpy()
        if self.pad_token_id not in ids[:, 0].tolist():
            return None
        return torch.from_numpy(np.logical_and.accumulate(ids == self.pad_token_id, axis=1).sum(axis=1))

    def _prompt_ends(self, input_ids: torch.Tensor) -> torch.Tensor:
        rows, length = input_ids.shape
        prompt = self._prompt_end(input_ids) if self.prompt_length is None else self.prompt_length
        if length < prompt:
            raise LZPenaltyError(
                f"prompt_length = {prompt}: the input has {length} tokens only. Make a new processor for every prompt "
                "length, or use include_prompt=True."
            )
        return torch.full((rows,), prompt, device=input_ids.device)

    def _prompt_end(self, input_ids: torch.Tensor) -> int:
        learned = self._learned.setdefault(input_ids.device, LearnedPrompt())
        return learned.end(input_ids.numpy() if input_ids.is_cpu else input_ids)

    def _padding_of(self, rows: int, device: torch.device) -> torch.Tensor:
        assert self.padding is not None
        copies, rest = divmod(rows, len(self.padding))
        if rest:
            raise LZPenaltyError(
                f"attention_mask has {len(self.padding)} rows and the scores {rows}: must be the same number, or a "
                "divisor of it. Make a new processor for every batch."
            )
        return self.padding.to(device).repeat_interleave(copies)

    @property
    def supports_continuous_batching(self) -> bool:  # type: ignore[override]
        """Raise: continuous batching asks for this if it did not convert the processor, and would pass only the last token."""
        raise LZPenaltyError(
            "continuous batching hands an ordinary processor only the last token of each request, so the LZ penalty could "
            "not take effect: call lz_penalty.engines.transformers.enable() and put lz_penalty into the generation config."
        )


def ends_of(tokenizer: Any, config: Any, pad: int | None) -> frozenset[int]:
    """Return the ids that end a row: end-of-sequence tokens of the generation config, else of the tokenizer, and padding."""
    found = getattr(config, "eos_token_id", None)
    if found is None:
        found = getattr(text_tokenizer(tokenizer), "eos_token_id", None)
    ids = found if isinstance(found, (list, tuple)) else [found]
    return frozenset(token for token in (*ids, pad) if token is not None)
