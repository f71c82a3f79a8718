"""Hugging Face transformers: a logits processor for `generate`, `generate(lz_penalty=0.15)`, continuous batching.

    from lz_penalty.engines.transformers import LZPenaltyLogitsProcessor
    processor = LZPenaltyLogitsProcessor(LZPenaltyConfig.guarded(), tokenizer=tokenizer)
    model.generate(**inputs, logits_processor=[processor])

    from lz_penalty.engines import transformers as lz
    lz.enable()
    model.generate(**inputs, lz_preset="guarded")

The processor is a pure function of the token ids it is called with, so beams, assisted and prompt-lookup decoding,
which call it with growing and shrinking prefixes, cannot confuse it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig, GenerationMixin, LogitsProcessor, LogitsProcessorList
from transformers.generation.continuous_batching import cb_logits_processors as continuous

from lz_penalty.config import REQUEST_FIELDS, LZPenaltyConfig
from lz_penalty.errors import LZPenaltyError, show
from lz_penalty.ops import apply_lz_penalty_

__all__ = ["LZPenaltyLogitsProcessor", "disable", "enable", "special_token_ids"]

THINKING_MARKERS = ("<think>", "</think>", "<|thinking|>", "<|/thinking|>", "[THINK]", "[/THINK]")


def special_token_ids(tokenizer: Any = None, config: Any = None) -> tuple[int, ...]:
    """The ids that structure a conversation: end of sequence and turn, padding, thinking markers.

    A prompt of many turns is full of them; penalised, they would leave the model less able to stop.

    Args:
        tokenizer: its special tokens, and those of its added tokens that are thinking markers or occur in its chat
            template.
        config: a model or generation config; its eos, bos and pad ids.
    """
    ids: set[int] = set()
    if tokenizer is not None:
        ids.update(tokenizer.all_special_ids)
        template = str(getattr(tokenizer, "chat_template", None) or "")
        for token, token_id in tokenizer.get_added_vocab().items():
            if token in THINKING_MARKERS or token in template:
                ids.add(token_id)
    for name in ("eos_token_id", "bos_token_id", "pad_token_id"):
        value = getattr(config, name, None)
        values = value if isinstance(value, (list, tuple)) else [value]
        ids.update(int(one) for one in values if one is not None)
    return tuple(sorted(ids))


class LZPenaltyLogitsProcessor(LogitsProcessor):
    """Adds the LZ penalty to the scores of `generate`.

    Args:
        config: the settings; at each step the penalty sees all tokens so far, less left padding.
        pad_token_id: the token of left padding: the leading run of it is left out (only that: it often is the
            end-of-sequence token too). Taken from the tokenizer or model config where one is given.
        tokenizer: its special tokens are exempt (see `special_token_ids`).
        model_config: a model or generation config, for the same where there is no tokenizer.
        penalise_special_tokens: do not exempt them.
        prompt_length: where the prompt ends, padding included; needed where the config has `include_prompt=False`.
    """

    def __init__(
        self,
        config: LZPenaltyConfig,
        pad_token_id: int | None = None,
        *,
        tokenizer: Any = None,
        model_config: Any = None,
        penalise_special_tokens: bool = False,
        prompt_length: int | None = None,
    ) -> None:
        if not isinstance(config, LZPenaltyConfig):
            raise LZPenaltyError(
                f"config = {show(config)}: must be an LZPenaltyConfig, such as LZPenaltyConfig.guarded()."
            )
        if not config.include_prompt and prompt_length is None:
            raise LZPenaltyError(
                "config has include_prompt=False: pass prompt_length = inputs.input_ids.shape[1], or use include_prompt=True."
            )
        if not penalise_special_tokens:
            special = special_token_ids(tokenizer, model_config)
            config = replace(config, exempt_token_ids=(*config.exempt_token_ids, *special))
        if pad_token_id is None:
            pad_token_id = getattr(tokenizer, "pad_token_id", None)
        if pad_token_id is None:
            pad_token_id = getattr(model_config, "pad_token_id", None)
        self.config = config
        self.pad_token_id = pad_token_id
        self.prompt_length = prompt_length

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.config}, pad_token_id={self.pad_token_id})"

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return penalised scores `[rows, vocab]` for the contexts `input_ids [rows, length]`."""
        penalised = scores.clone()  # in place would corrupt `output_logits`
        apply_lz_penalty_(penalised, input_ids, config=self.config, starts=self._starts(input_ids))
        return penalised

    def _starts(self, input_ids: torch.Tensor) -> torch.Tensor | None:
        """Where each row's context begins: behind its left padding, or behind the prompt."""
        rows, length = input_ids.shape
        if not self.config.include_prompt:
            return torch.full((rows,), min(self.prompt_length or 0, length), device=input_ids.device)
        if self.pad_token_id is None or not length:
            return None
        if input_ids.device.type != "cpu":  # where looking would mean waiting
            return (input_ids == self.pad_token_id).long().cumprod(dim=1).sum(dim=1)
        padded = np.asarray(input_ids) == self.pad_token_id
        return torch.from_numpy(np.logical_and.accumulate(padded, axis=1).sum(axis=1)) if padded[:, 0].any() else None

    @property
    def supports_continuous_batching(self) -> bool:  # type: ignore[override]
        """Asked by continuous batching for a processor that it did not convert: it would hand over only the last token."""
        raise LZPenaltyError(
            "continuous batching hands an ordinary processor only the last token of each request, so the LZ penalty could "
            "not take effect: use ContinuousBatchingConfig(per_request_processors=True)."
        )


# ---------------------------------------------------------------- continuous batching


def _field_type(key: str) -> type:
    """A type whose instances are the valid values of a request field: continuous batching checks nothing but types.

    So a bad value is refused when the request is added, and cannot reach the loop that serves all requests.
    """

    class Valid(type):
        def __instancecheck__(cls, value: Any) -> bool:
            try:
                LZPenaltyConfig.from_request({key: value}, LZPenaltyConfig())
            except LZPenaltyError:
                return False
            return True

    return Valid(f"valid {key}", (), {})


# Fields that are valid or not by themselves; the others depend on each other.
CONTINUOUS_FIELDS = {
    key: _field_type(key) for key in ("lz_penalty", "lz_preset", "lz_window_size", "lz_escalation", "lz_loop_window")
}


class ContinuousLZPenalty(continuous.ContinuousBatchingLogitsProcessor):
    """The processor's form in continuous batching: reads each request's own history, with settings per request.

    `logit_processor_kwargs` may hold `CONTINUOUS_FIELDS`; they refine the processor's settings.
    """

    def __init__(self, processor: LZPenaltyLogitsProcessor) -> None:
        self.supported_kwargs = CONTINUOUS_FIELDS
        self.ignored_kwargs = ()
        self.config = processor.config
        self.histories: list[tuple[LZPenaltyConfig | None, list[int]]] = []

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        """Nothing travels in the shared tensor."""
        int32_tensor.zero_()

    def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> torch.Tensor:
        """Collect the history and settings of every request that gets a token in this step."""
        self.histories = []
        for request in requests_with_new_token:
            state = request.state
            history = state.initial_tokens + state.generated_tokens
            if state.position_offset != len(history):
                raise LZPenaltyError(
                    "asynchronous batching prepares a step before the last token is known, so the LZ penalty would be one "
                    "token late: use ContinuousBatchingConfig(use_async_batching=False)."
                )
            prompt = state._true_initial_tokens or len(state.initial_tokens)
            config = self._settings(state.logit_processor_kwargs)
            self.histories.append((config, history if config is None or config.include_prompt else history[prompt:]))
        return torch.zeros(len(self.histories), dtype=torch.int32)

    def _settings(self, asked: dict[str, Any]) -> LZPenaltyConfig | None:
        config = LZPenaltyConfig.from_request(asked, self.config)
        if config is None or config is self.config:
            return config
        return replace(config, exempt_token_ids=(*config.exempt_token_ids, *self.config.exempt_token_ids))

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """Return penalised scores `[rows, vocab]`; rows beyond the requests are padding."""
        if scores.is_cuda and torch.cuda.is_current_stream_capturing():
            raise LZPenaltyError(
                "a CUDA graph of continuous batching would keep the histories of the step it was captured in: use "
                "ContinuousBatchingConfig(use_cuda_graph=False)."
            )
        rows = len(self.histories)
        if not rows:
            return scores  # the warm-up has no requests
        lengths = torch.tensor([len(history) for _, history in self.histories])
        tokens = torch.zeros(rows, int(lengths.max()), dtype=torch.int64)
        for row, (_, history) in enumerate(self.histories):
            tokens[row, : len(history)] = torch.tensor(history)
        configs = [config and replace(config, include_prompt=True) for config, _ in self.histories]
        penalised = scores.clone()
        device = scores.device
        apply_lz_penalty_(penalised[:rows], tokens.to(device), lengths.to(device), config=configs)
        return penalised


continuous.CLASSIC_TO_CB_PROCESSORS_MAP[LZPenaltyLogitsProcessor] = ContinuousLZPenalty


# ---------------------------------------------------------------- generate(lz_penalty=0.15)


def enable() -> None:
    """Let `generate`, `GenerationConfig` and its files take the flat `lz_*` settings of `LZPenaltyConfig.from_request`.

    Eos and pad tokens of the generation config are exempt. Calling it twice changes nothing; `disable()` takes it back.
    """
    if hasattr(GenerationMixin._get_logits_processor, "without_lz_penalty"):
        return
    for name in REQUEST_FIELDS:
        setattr(GenerationConfig, name, None)
    original = GenerationMixin._get_logits_processor

    @functools.wraps(original)
    def with_lz_penalty(self, generation_config, input_ids_seq_length=None, *args, **kwargs):
        asked = {name: getattr(generation_config, name, None) for name in REQUEST_FIELDS}
        config = LZPenaltyConfig.from_request({name: value for name, value in asked.items() if value is not None})
        if config is not None:
            given: Iterable[Any] = kwargs.get("logits_processor") or ()
            if any(isinstance(processor, LZPenaltyLogitsProcessor) for processor in given):
                raise LZPenaltyError("lz_* settings and an LZPenaltyLogitsProcessor were given: use one of them.")
            ours = LZPenaltyLogitsProcessor(
                config, model_config=generation_config, prompt_length=input_ids_seq_length or 0
            )
            kwargs["logits_processor"] = LogitsProcessorList([*given, ours])
        return original(self, generation_config, input_ids_seq_length, *args, **kwargs)

    with_lz_penalty.without_lz_penalty = original  # type: ignore[attr-defined]
    GenerationMixin._get_logits_processor = with_lz_penalty  # type: ignore[method-assign]


def disable() -> None:
    """Undo `enable()`."""
    original = getattr(GenerationMixin._get_logits_processor, "without_lz_penalty", None)
    if original is not None:
        GenerationMixin._get_logits_processor = original  # type: ignore[method-assign]
        for name in REQUEST_FIELDS:
            delattr(GenerationConfig, name)
