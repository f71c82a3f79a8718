"""`enable()`: the `lz_*` settings in `generate`, `GenerationConfig`, `generate_batch` and `transformers serve`.

Every change to transformers is one line of `_CHANGES`, of `CHANGES` in `_continuous.py` or in `_serving.py`: a method and the
function that wraps it. `Patches` makes and undoes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any

from transformers import GenerationConfig, GenerationMixin
from transformers.cli.serving.utils import BaseHandler
from transformers.generation.continuous_batching.continuous_api import ContinuousBatchingManager, ContinuousMixin

from lz_penalty.engines.transformers import _continuous as continuous
from lz_penalty.engines.transformers import _serving as serving
from lz_penalty.engines.transformers._assistants import IN_ANOTHER_VOCABULARY
from lz_penalty.engines.transformers._calls import ONE_BY_ONE, finish, mask_of_prompt, processor_of, with_processor
from lz_penalty.engines.transformers._patching import Change, Patches
from lz_penalty.engines.transformers._policy import LZPolicyLogitsProcessor
from lz_penalty.engines.transformers._processor import LZPenaltyLogitsProcessor
from lz_penalty.engines.transformers._settings import FIELDS, asked_of, lz_fields
from lz_penalty.errors import LZPenaltyError, unknown_field
from lz_penalty.policy import RequestPolicy

__all__ = ["disable", "enable"]


def enable() -> None:
    """Let transformers take the flat `lz_*` settings of `lz_penalty.policy.settings_from_request`.

        model.generate(**inputs, lz_preset="guarded", lz_penalty=0.3)
        output = model.generate(**inputs, lz_policy="default", lz_stop_copies=20, tokenizer=tokenizer)
        output.lz_outcomes                                              # of each row: see `Outcome`
        model.generation_config.lz_penalty = 0.15                       # and generation_config.json
        model.generate_batch(prompts, generation_config=GenerationConfig(lz_penalty=0.15))
        POST /v1/chat/completions {"messages": ..., "lz_penalty": 0.15}  # of `transformers serve` in this process

    Eos, bos and pad tokens of the generation config are exempt; with `tokenizer=tokenizer`, and in `transformers serve`, all
    special tokens of the tokenizer. Calling it twice changes nothing; `disable()` takes it back.

    Raises:
        BackendUnavailableError: this version of transformers lacks a method that must be changed; nothing was changed.
    """
    _PATCHES.make(_changes(), [(GenerationConfig, name) for name in FIELDS])


def disable() -> None:
    """Undo `enable()`. What other libraries have put on top of it stays."""
    _PATCHES.undo()


class _Call:
    """One call of `generate`: its arguments, and the processor that was made for it."""

    def __init__(self, model: Any, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        config = args[1] if len(args) > 1 else given.get("generation_config")
        self.tokenizer = given.get("tokenizer") or getattr(model, "lz_tokenizer", None)
        self.plain = given.get("assistant_model") is None and given.get("custom_generate") is None
        self.request_id = getattr(config, serving.REQUEST_ID, None)
        self.processor: LZPenaltyLogitsProcessor | None = None

    @property
    def policy(self) -> LZPolicyLogitsProcessor | None:
        """The processor, if it has a policy."""
        return self.processor if isinstance(self.processor, LZPolicyLogitsProcessor) else None


_CALL: ContextVar[_Call | None] = ContextVar("_CALL", default=None)


def _generate(original: Callable[..., Any]) -> Callable[..., Any]:
    def changed(self, *args, **kwargs):
        for name, value in lz_fields(kwargs).items():
            if name not in FIELDS:
                raise unknown_field(name, value, FIELDS)
        call = _Call(self, args, kwargs)
        token = _CALL.set(call)
        try:
            output = original(self, *args, **kwargs)
            return finish(call.processor, output)
        finally:
            _CALL.reset(token)

    return changed


def _get_logits_processor(original: Callable[..., Any]) -> Callable[..., Any]:
    def changed(self, generation_config, input_ids_seq_length=None, *args, **kwargs):
        given: Iterable[Any] = kwargs.get("logits_processor") or ()
        ours = None
        handed = any(getattr(processor, _OF_SETTINGS, False) for processor in given)  # to an assistant
        if not handed and not IN_ANOTHER_VOCABULARY.get():
            ours = _processor(self, generation_config, input_ids_seq_length, kwargs.get("model_kwargs") or {})
        if ours is not None:
            kwargs["logits_processor"] = with_processor(given, ours)
            call = _CALL.get()
            if call is not None:
                call.processor = ours
        return original(self, generation_config, input_ids_seq_length, *args, **kwargs)

    return changed


def _get_stopping_criteria(original: Callable[..., Any]) -> Callable[..., Any]:
    def changed(self, *args, **kwargs):
        criteria = original(self, *args, **kwargs)
        call = _CALL.get()
        policy = None if call is None else call.policy
        if call is not None and policy is not None and policy.asked.ladder.stop_copies is not None:
            policy.stopping.noted = lambda: continuous.note_stop(call.request_id)
            criteria.append(policy.stopping)
        return criteria

    return changed


def _processor(
    model: Any, generation_config: Any, prompt_length: int | None, model_kwargs: dict[str, Any]
) -> LZPenaltyLogitsProcessor | None:
    """Return the processor that a generation config asks for. Without a prompt length it is for continuous batching."""
    asked, says_so = asked_of(generation_config)
    if asked is None and says_so and prompt_length is None:
        asked = continuous.OFF  # requests may ask for it
    if asked is None:
        return None
    call = None if prompt_length is None else _CALL.get()
    if call is None and prompt_length is not None and isinstance(asked, RequestPolicy):
        raise LZPenaltyError(
            "this model has a generate of its own: a policy takes effect in that of GenerationMixin only."
        )
    made = processor_of(
        asked,
        tokenizer=getattr(model, "lz_tokenizer", None) if call is None else call.tokenizer,
        only_appended=call is None or (call.plain and generation_config.get_generation_mode() in ONE_BY_ONE),
        model_config=generation_config,
        attention_mask=mask_of_prompt(model, model_kwargs.get("attention_mask"), prompt_length),
        prompt_length=prompt_length or 0,
        penalise_special_tokens=serving.penalises_special_tokens(model),
    )
    setattr(made, _OF_SETTINGS, True)
    return made


def _init_continuous_batching(original: Callable[..., Any]) -> Callable[..., Any]:
    def changed(self, generation_config=None, continuous_batching_config=None, *args, **kwargs):
        generation = self.generation_config if generation_config is None else generation_config
        ours = _processor(self, generation, None, {})
        if ours is not None:
            inner = getattr(generation, "continuous_batching_config", None)  # the place it had before
            continuous_batching_config = continuous.exact(continuous_batching_config or inner)
        manager = original(self, generation_config, continuous_batching_config, *args, **kwargs)
        penalty = continuous.penalty_of(manager)
        wanted = None if ours is None else getattr(ours, "asked", ours.config)
        if (penalty and penalty.asked) != wanted:
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


def _handler(original: Callable[..., Any]) -> Callable[..., Any]:
    def changed(self, *args, **kwargs):
        with _PATCHES.lock:
            if _PATCHES.made:  # another thread may have called `disable()`
                enable()  # the class of this handler may have been loaded since
        original(self, *args, **kwargs)

    return changed


_PATCHES = Patches()
_OF_SETTINGS = "of_lz_settings"  # on processors made from `lz_*` settings
_CHANGES: tuple[Change, ...] = (
    (GenerationMixin, "generate", _generate),
    (GenerationMixin, "_get_logits_processor", _get_logits_processor),
    (GenerationMixin, "_get_stopping_criteria", _get_stopping_criteria),
    (ContinuousMixin, "init_continuous_batching", _init_continuous_batching),
    (ContinuousBatchingManager, "add_request", _add_request),
    *continuous.CHANGES,
    (BaseHandler, "__init__", _handler),
    *serving.CHANGES,
)


def _changes() -> list[Change]:
    return [*_CHANGES, *serving.changes_of_handlers()]
