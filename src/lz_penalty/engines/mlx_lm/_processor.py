"""mlx-lm: `LZPenaltyProcessor` for `generate`, `stream_generate`, `batch_generate` and `BatchGenerator`.

    processor = LZPenaltyProcessor(LZPenaltyConfig.guarded(), tokenizer=tokenizer)
    generate(model, tokenizer, prompt, logits_processors=[processor])

The processor evaluates nothing, so tokens stay on the device and mlx-lm's steps stay asynchronous.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from lz_penalty._checks import MAX_TOKEN_ID, integer
from lz_penalty._packing import pack_configs
from lz_penalty.config import LZPenaltyConfig
from lz_penalty.engines._prompt import LearnedPrompt
from lz_penalty.engines._special_tokens import exempting, special_token_ids
from lz_penalty.errors import LZPenaltyError, show
from lz_penalty.kernels.mlx_any import prepare

__all__ = ["LZPenaltyProcessor"]


class LZPenaltyProcessor:
    """A logits processor whose result depends only on the tokens of the call, apart from a prompt that it learns.

    Args:
        config: the settings.
        tokenizer: its special tokens and end tokens are exempt (see `special_token_ids`).
        cached_tokens: tokens before the sequence that mlx-lm does not pass: with a `prompt_cache` the tokens in the
            cache, with a `draft_model` the prompt without its last token.
        prompt_length: the number of tokens in the prompt, including cached ones; used with `include_prompt=False`.
            `None`: learn it from the first call of each generation (see `LearnedPrompt`), which makes every step wait for
            the newest token.
        vocab_size: the size of the alphabet if the logits are padded; by default their width.
        penalise_special_tokens: do not exempt special tokens.
    """

    def __init__(
        self,
        config: LZPenaltyConfig,
        *,
        tokenizer: Any = None,
        cached_tokens: Sequence[int] | mx.array = (),
        prompt_length: int | None = None,
        vocab_size: int | None = None,
        penalise_special_tokens: bool = False,
    ) -> None:
        if not isinstance(config, LZPenaltyConfig):
            raise LZPenaltyError(
                f"config = {show(config)}: must be an LZPenaltyConfig, such as LZPenaltyConfig.guarded()."
            )
        self.prompt_length = integer(0, MAX_TOKEN_ID, optional=True)("prompt_length", prompt_length)
        self._learned = LearnedPrompt()
        self.vocab_size = integer(1, MAX_TOKEN_ID, optional=True)("vocab_size", vocab_size)
        if tokenizer is not None and not penalise_special_tokens:
            config = exempting(config, special_token_ids(tokenizer))
        self.config, self._packed = config, pack_configs(config)
        self.cached_tokens = mx.array(cached_tokens, dtype=mx.int64)
        if self.cached_tokens.ndim != 1:
            raise LZPenaltyError(f"cached_tokens = {show(cached_tokens)}: must be a flat sequence of token ids.")

    def __repr__(self) -> str:
        cached = f", {self.cached_tokens.size} cached tokens" if self.cached_tokens.size else ""
        return f"LZPenaltyProcessor({self.config}, prompt_length={self.prompt_length}{cached})"

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        """Return penalised logits `[1, vocab]` for the context `tokens [n]`."""
        if tokens.ndim != 1 or logits.ndim != 2 or logits.shape[0] != 1:
            raise LZPenaltyError(
                f"tokens have shape {tokens.shape} and logits {logits.shape}: must be [n] and [1, vocab], one sequence."
            )
        width = logits.shape[1]
        if self.vocab_size is not None and self.vocab_size > width:
            raise LZPenaltyError(f"vocab_size = {self.vocab_size}: must be at most {width}, the logits' width.")
        arrays = (logits, self._context(tokens)[None])
        return prepare(arrays, self._packed, self.vocab_size or width)(*arrays)

    def _context(self, tokens: mx.array) -> mx.array:
        """Return the tokens that count."""
        if self.cached_tokens.size:
            tokens = mx.concatenate([self.cached_tokens, tokens.astype(mx.int64)])
        if self.config.include_prompt:
            return tokens
        prompt = self._learned.end(np.array(tokens)) if self.prompt_length is None else self.prompt_length
        if tokens.size < prompt:
            raise LZPenaltyError(
                f"prompt_length = {prompt}: must be at most {tokens.size}, the number of tokens. Create a processor for "
                "every prompt, and pass cached_tokens with a prompt cache or draft model."
            )
        return tokens[prompt:]
