"""`enable()`: the `lz_*` settings in `generate`, `GenerationConfig`, `generate_batch` and `transformers serve`.

Every change to transformers is one line of `_CHANGES`, here or in `serving`: a method and what wraps it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from transformers import GenerationConfig, GenerationMixin, LogitsProcessorList
from transformers.generation.continuous_batching.continuous_api import ContinuousBatchingManager, ContinuousMixin

from lz_penalty.config import REQUEST_FIELDS, LZPenaltyConfig
from lz_penalty.engines.transformers import continuous, serving
from lz_penalty.engines.transformers.processor import LZPenaltyLogitsProcessor
from lz_penalty.engines.transformers.settings import lz_fields
from lz_penalty.errors import LZPenaltyError

__all__ = ["disable", "enable"]


def enable() -> None:
    """Let transformers take the flat `lz_*` settings of `LZPenaltyConfig.from_request`.

        model.generate(**inputs, lz_preset="guarded", lz_penalty=0.3)
        model.generation_config.lz_penalty = 0.15                       # and generation_config.json
        model.generate_batch(prompts, generation_config=GenerationConfig(lz_penalty=0.15))
        POST /v1/chat/completions {"messages": ..., "lz_penalty": 0.15}  # of `transformers serve` in this process

    Eos, bos and pad tokens of the generation config are exempt; in `transformers serve`, all special tokens of the
    tokenizer. Calling it twice changes nothing; `disable()` takes it back.
    """
    for name in REQUEST_FIELDS:
        setattr(GenerationConfig, name, None)
    for owner, name, change in _CHANGES:
        original = getattr(owner, name)
        if not hasattr(original, "without_lz_penalty"):
            changed = functools.wraps(original)(change(original))
            changed.without_lz_penalty = original  # type: ignore[attr-defined]
            setattr(owner, name, changed)


def disable() -> None:
    """Undo `enable()`."""
    for owner, name, _ in _CHANGES:
        setattr(owner, name, getattr(getattr(owner, name), "without_lz_penalty", getattr(owner, name)))
    for name in REQUEST_FIELDS:
        if hasattr(GenerationConfig, name):
            delattr(GenerationConfig, name)


class _OfSettings(LZPenaltyLogitsProcessor):
    """Made from `lz_*` settings, not by the caller. An assistant model is handed it by the model it assists."""


def _get_logits_processor(original: Callable[..., Any]) -> Callable[..., Any]:
    def changed(self, generation_config, input_ids_seq_length=None, *args, **kwargs):
        given: Iterable[Any] = kwargs.get("logits_processor") or ()
        ours = _processor(self, generation_config, input_ids_seq_length, kwargs.get("model_kwargs") or {})
        an_assistant_has_it = any(isinstance(processor, _OfSettings) for processor in given)
        if ours is not None and not an_assistant_has_it:
            if any(isinstance(processor, LZPenaltyLogitsProcessor) for processor in given):
                raise LZPenaltyError("lz_* settings and an LZPenaltyLogitsProcessor were given: use one of them.")
            kwargs["logits_processor"] = LogitsProcessorList([*given, ours])
        return original(self, generation_config, input_ids_seq_length, *args, **kwargs)

    return changed


def _processor(
    model: Any, generation_config: Any, prompt_length: int | None, model_kwargs: dict[str, Any]
) -> LZPenaltyLogitsProcessor | None:
    """The processor that a generation config asks for. Without a prompt length it is for continuous batching."""
    given = lz_fields(vars(generation_config))
    config = LZPenaltyConfig.from_request(given)
    if config is None and given and prompt_length is None:
        config = continuous.OFF  # requests may ask for it
    if config is None:
        return None
    mask = model_kwargs.get("attention_mask")
    if model.config.is_encoder_decoder or (mask is not None and mask.shape[1:] != (prompt_length,)):
        mask = None  # not the mask of the ids that the processor will see
    return _OfSettings(
        config,
        model_config=generation_config,
        attention_mask=mask,
        prompt_length=prompt_length or 0,
        **serving.special_tokens_of(model),
    )


def _init_continuous_batching(original: Callable[..., Any]) -> Callable[..., Any]:
    def changed(self, generation_config=None, continuous_batching_config=None, *args, **kwargs):
        generation = self.generation_config if generation_config is None else generation_config
        ours = _processor(self, generation, None, {})
        if ours is not None:
            inner = getattr(generation, "continuous_batching_config", None)  # the place it had before
            continuous_batching_config = continuous.exact(continuous_batching_config or inner)
        manager = original(self, generation_config, continuous_batching_config, *args, **kwargs)
        penalty = continuous.penalty_of(manager)
        if (penalty and penalty.config) != (ours and ours.config):
            raise LZPenaltyError(
                "a persistent manager with other lz_* settings is in use: call "
                "model.destroy_cached_continuous_batching_manager() first."
            )
        return manager

    return changed


def _add_request(original: Callable[..., Any]) -> Callable[..., Any]:
    def changed(self, *args, **kwargs):
        given = lz_fields(kwargs)
        others = {name: value for name, value in kwargs.items() if not name.startswith("lz_")}
        return original(self, *args, **others, **continuous.settings_of_request(self, given))

    return changed


_CHANGES: tuple[tuple[type, str, Callable[..., Any]], ...] = (
    (GenerationMixin, "_get_logits_processor", _get_logits_processor),
    (ContinuousMixin, "init_continuous_batching", _init_continuous_batching),
    (ContinuousBatchingManager, "add_request", _add_request),
    *serving.CHANGES,
)
