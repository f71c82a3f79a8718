"""`generate`: `model.generate` with `lz_*` settings, without a change to transformers or to anything of the caller."""

from __future__ import annotations

from typing import Any

from transformers import StoppingCriteriaList

from lz_penalty.config import LZPenaltyConfig
from lz_penalty.engines.transformers._calls import ONE_BY_ONE, finish, mask_of_prompt, processor_of, with_processor
from lz_penalty.engines.transformers._policy import LZPolicyLogitsProcessor
from lz_penalty.engines.transformers._processor import LZPenaltyLogitsProcessor
from lz_penalty.engines.transformers._settings import lz_fields
from lz_penalty.errors import LZPenaltyError
from lz_penalty.policy import RequestPolicy, settings_from_request

__all__ = ["generate"]

# `model.generate` passes these to the function of a `custom_generate` repository after it has used them to load it.
_OF_LOADING = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")


def generate(model: Any, inputs: Any = None, generation_config: Any = None, **arguments: Any) -> Any:
    """Call `model.generate` with the LZ penalty.

        generate(model, **inputs, lz_preset="guarded", lz_penalty=0.3)
        model.generate(**inputs, custom_generate="FOLDER OR REPOSITORY", trust_remote_code=True, lz_preset="guarded")

    This is the function of the `custom_generate` repository in `integrations/custom_generate`. It needs no `enable()`, and
    changes neither transformers nor the model, its configs or the lists that are passed.

    Args:
        model: a model of transformers.
        inputs: as for `model.generate`.
        generation_config: as for `model.generate`. It may have `lz_*` fields too.
        arguments: all other arguments of `model.generate`, and the `lz_*` fields of
            `lz_penalty.policy.settings_from_request`. The default is the preset `guarded`; `lz_penalty=0` switches the
            penalty off. With `tokenizer=tokenizer` all special tokens are exempt, else those of the generation config.

    Returns:
        What `model.generate` returns. A ladder and shadow mode add `lz_outcomes`: see `Outcome`.

    Raises:
        LZPenaltyError: a field is unknown or has a bad value.
    """
    rest = {name: value for name, value in arguments.items() if name[:3] != "lz_" and name not in _OF_LOADING}
    merged, _ = model._prepare_generation_config(generation_config, **rest)  # a copy, with the fields of the model's
    given = lz_fields(vars(merged)) | lz_fields(arguments)
    asked = settings_from_request(given, default=LZPenaltyConfig.guarded())
    processor = None
    if asked is not None:
        processor = _processor(model, asked, inputs, merged, rest)
        rest["logits_processor"] = with_processor(rest.get("logits_processor"), processor)
        if isinstance(processor, LZPolicyLogitsProcessor) and processor.asked.ladder.stop_copies is not None:
            criteria = rest.get("stopping_criteria") or ()
            rest["stopping_criteria"] = StoppingCriteriaList([*criteria, processor.stopping])
    # The class's method: the model's own may be this function, if its repository has a `custom_generate`.
    return finish(processor, type(model).generate(model, inputs, generation_config, **rest))


def _processor(
    model: Any, asked: LZPenaltyConfig | RequestPolicy, inputs: Any, generation_config: Any, arguments: dict[str, Any]
) -> LZPenaltyLogitsProcessor:
    """Return the processor for this call of `generate`."""
    assistant = arguments.get("assistant_model")
    length = _prompt_length(model, inputs, arguments)
    if length is None and isinstance(asked, RequestPolicy) and asked.looks_for_runs:
        raise LZPenaltyError(
            "a ladder and shadow mode must know where the output begins, which an encoder-decoder model does not tell here: "
            "call lz_penalty.engines.transformers.enable(), and generate without custom_generate."
        )
    return processor_of(
        asked,
        tokenizer=arguments.get("tokenizer") or getattr(model, "lz_tokenizer", None),
        only_appended=generation_config.get_generation_mode(assistant) in ONE_BY_ONE,
        model_config=generation_config,
        attention_mask=mask_of_prompt(model, arguments.get("attention_mask"), length),
        prompt_length=length,
    )


def _prompt_length(model: Any, inputs: Any, arguments: dict[str, Any]) -> int | None:
    """Return how many ids of a prompt the processor will see; `None`: it learns that from its first call."""
    if model.config.is_encoder_decoder:
        return None
    ids = arguments.get("input_ids") if inputs is None else inputs
    if ids is not None:
        return ids.shape[1]
    return 1 if arguments.get("inputs_embeds") is None else 0  # the begin token, or ids of new tokens only
