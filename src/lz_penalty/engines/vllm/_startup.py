"""What is read, checked and agreed on once, when vLLM starts."""

from __future__ import annotations

import pkgutil
from importlib.metadata import entry_points
from types import SimpleNamespace
from typing import Any

import torch
from vllm import envs
from vllm.distributed import get_tensor_model_parallel_rank, get_tp_group
from vllm.logger import init_logger

from lz_penalty._backends import choose_backend
from lz_penalty.engines._generation import NO_SECTIONS, Reading, reading_of
from lz_penalty.engines._special_tokens import special_token_ids
from lz_penalty.engines.server import VARIABLE, server_settings
from lz_penalty.engines.vllm._c_step import reads_in_c
from lz_penalty.errors import LZPenaltyError
from lz_penalty.policy import RequestPolicy

__all__ = [
    "NAME",
    "all_read_in_c",
    "check_engine",
    "check_loaded_once",
    "counted_slots",
    "reading_of_model",
    "special_tokens_of",
    "tokenizer_of",
    "v2_pins_memory",
]

NAME = "lz_penalty.engines.vllm:LZPenaltyLogitsProcessor"
_LOGGER = init_logger("vllm.lz_penalty")  # so that vLLM shows it


def check_loaded_once(processor: type, name: str, vllm_config: Any) -> None:
    """Raise `LZPenaltyError` unless the class is named exactly once and no entry point loads it.

    A class that is loaded twice would penalise twice. From an entry point it may lack output ids.
    """
    named = [_class_of(one) for one in vllm_config.model_config.logits_processors or ()]
    registered = [one.load() for one in entry_points(group="vllm.logits_processors")]
    times = [isinstance(one, type) and issubclass(one, processor) for one in named + registered]
    if sum(times) != 1:
        raise LZPenaltyError(
            f"{processor.__name__} is loaded {sum(times)} times (logits_processors = {named}, entry points = "
            f"{registered}): it must be once, or the penalty would be added again each time. Name {name} once."
        )
    if not any(times[: len(named)]):
        raise LZPenaltyError(
            f"{processor.__name__} was loaded through an entry point, where vLLM may hide the output ids from it: "
            f"name it with --logits-processors {name} instead."
        )


def _class_of(named: str | type) -> Any:
    return pkgutil.resolve_name(named) if isinstance(named, str) else named


def check_engine(vllm_config: Any, device: torch.device, v1: bool) -> None:
    """Raise `LZPenaltyError` if the penalty cannot be exact in this engine."""
    if v1 and vllm_config.speculative_config is not None:
        raise LZPenaltyError(
            "speculative decoding on vLLM's V1 runner has no logits row per draft token for a custom processor: use "
            "the V2 runner (VLLM_USE_V2_MODEL_RUNNER=1, vLLM 0.31 or later), or no speculative decoding."
        )
    if getattr(vllm_config.model_config, "is_diffusion", False):
        raise LZPenaltyError(
            "a diffusion model chooses many tokens at once, and the LZ penalty of each depends on those before it: "
            f"start this model without {NAME}."
        )
    if getattr(envs, "VLLM_USE_RUST_FRONTEND", False):
        raise LZPenaltyError(
            "VLLM_USE_RUST_FRONTEND is set: vLLM's front end in Rust does not let the LZ penalty check requests, and a bad "
            "lz_* field would end the engine. Start vLLM without this variable."
        )
    reserved, size = server_settings().stop_token_id, vllm_config.model_config.get_vocab_size()
    if reserved is not None and reserved >= size:
        raise LZPenaltyError(f"{VARIABLE}: stop_token_id = {reserved}: must be below {size}, the model's vocabulary.")
    if device.type not in ("cpu", "cuda"):
        raise LZPenaltyError(
            f"vLLM runs on {device.type}, and the LZ penalty in vLLM knows cpu and cuda only: start it without {NAME}."
        )


def v2_pins_memory() -> bool:
    """Return whether memory can be pinned. The V2 runner does not tell a processor."""
    from vllm.utils.platform_utils import is_pin_memory_available

    return is_pin_memory_available()


# ---------------------------------------------------------------- the model


def tokenizer_of(model_config: Any) -> Any:
    """Return the tokenizer of this model; `None` if vLLM was told to do without."""
    from vllm.tokenizers import cached_tokenizer_from_config  # the only place that needs vLLM's tokenizers

    return None if model_config.skip_tokenizer_init else cached_tokenizer_from_config(model_config)


def special_tokens_of(model_config: Any) -> tuple[int, ...]:
    """Return the ids that are exempt for every request of this model, and log them."""
    generation = SimpleNamespace(**model_config.try_get_generation_config())
    ids = special_token_ids(tokenizer_of(model_config), model_config.hf_config, generation)
    _LOGGER.info("special tokens that are exempt: %s", ids)
    return ids


def reading_of_model(model_config: Any) -> Reading:
    """Return how texts of this model are read.

    If its tokenizer cannot be read, there are no sections: requests without a policy must be served all the same.

    Raises:
        LZPenaltyError: the tokenizer cannot be read, and the server's default has a policy.
    """
    try:
        sections, closers = reading_of(tokenizer_of(model_config))
    except Exception as error:  # whatever a tokenizer that is not Hugging Face's may raise
        if isinstance(server_settings().default, RequestPolicy):
            raise LZPenaltyError(
                f"{VARIABLE}: the default has a policy, but this model's tokenizer does not tell sections ({error!r}): "
                "use lz_preset and its fields alone."
            ) from error
        _LOGGER.warning("sections cannot be told, so a policy's answer holds everywhere: %r", error)
        return NO_SECTIONS
    size = model_config.get_vocab_size()  # a tokenizer may have tokens that the model does not know
    return Reading(sections, {pair: ids for pair, ids in closers.items() if max(ids) < size})


# ---------------------------------------------------------------- tensor-parallel ranks


def counted_slots(parallel: Any, slots: int, v1: bool) -> range:
    """Return the slots whose requests this process counts. Of all tensor-parallel ranks, exactly one counts each slot.

    With batch-sharded sampling, a rank of V2 samples only the slots that are `rank` modulo the number of ranks.
    """
    ranks = parallel.tensor_parallel_size
    rank = 0 if ranks == 1 else get_tensor_model_parallel_rank()
    if not v1 and getattr(parallel, "enable_batch_sharded_sampling", False):
        return range(rank, slots, ranks)
    return range(slots if rank == 0 else 0)


def all_read_in_c(ranks: int, device: torch.device) -> bool:
    """Ask all tensor-parallel ranks, and return whether every one of them can take the new tokens in C.

    Args:
        ranks: the tensor-parallel size.
        device: where the logits of this rank are.

    Raises:
        LZPenaltyError: the ranks have different backends, whose logits differ in their last bits.
    """
    here = (reads_in_c(), choose_backend(torch.zeros(1, device=device)))
    found: list[Any] = [here] * ranks
    if ranks > 1:
        torch.distributed.all_gather_object(found, here, group=get_tp_group().cpu_group)
    in_c, backends = zip(*found, strict=True)
    if len(set(backends)) > 1:
        raise LZPenaltyError(
            f"the tensor-parallel ranks would penalise with different backends ({', '.join(backends)}), and could choose "
            "different tokens. Install the same packages for all of them; lz-penalty doctor shows what is missing."
        )
    if reads_in_c() and not all(in_c):
        _LOGGER.warning("another rank has no C compiler, so this rank does without its C code too")
    return all(in_c)
