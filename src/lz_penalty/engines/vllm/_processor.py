"""The class that vLLM loads. It checks that it can be exact, and hands on to the state of the runner that loaded it."""

from __future__ import annotations

import pkgutil
from importlib.metadata import entry_points
from typing import Any

import torch
from vllm import SamplingParams, envs
from vllm.distributed import get_tensor_model_parallel_rank
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor

from lz_penalty.engines._requests import RequestSettings, allow_pinning
from lz_penalty.engines.server import VARIABLE, server_settings
from lz_penalty.engines.vllm._counting import BatchReader, SlotReader, count_request
from lz_penalty.engines.vllm._ending import change_copies, prepare_end
from lz_penalty.engines.vllm._following import Following
from lz_penalty.engines.vllm._ranks import all_read_in_c
from lz_penalty.engines.vllm._settings import special_tokens_of
from lz_penalty.engines.vllm._v1 import BatchState
from lz_penalty.engines.vllm._v2 import SlotState
from lz_penalty.errors import LZPenaltyError
from lz_penalty.policy import RequestPolicy

try:
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as V2LogitsProcessor
except ImportError:  # vLLM before 0.31 has one interface
    BASES: tuple[type, ...] = (LogitsProcessor,)
else:
    BASES = (LogitsProcessor, V2LogitsProcessor)

__all__ = ["LZPenaltyLogitsProcessor"]

NAME = "lz_penalty.engines.vllm:LZPenaltyLogitsProcessor"


class LZPenaltyLogitsProcessor(*BASES):  # type: ignore[misc]
    """Adds the LZ penalty to the logits of the requests that ask for it, or of all where there is a server default.

    Per request: the flat `lz_*` fields of `lz_penalty.policy.settings_from_request`, in `SamplingParams.extra_args` or,
    over HTTP, `vllm_xargs`. For all: `lz_penalty.engines.server`.
    """

    def __init__(self, vllm_config: Any, place: Any, is_pin_memory: bool | None = None) -> None:
        """Called by vLLM: V1 passes the device and whether memory can be pinned, V2 its request states."""
        _check_loaded_once(vllm_config)
        v1 = is_pin_memory is not None
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
        if getattr(envs, "VLLM_USE_RUST_FRONTEND", False):  # it asks no processor what a request may have
            raise LZPenaltyError(
                "VLLM_USE_RUST_FRONTEND is set: vLLM's front end in Rust does not let the LZ penalty check requests, and a bad "
                "lz_* field would end the engine. Start vLLM without this variable."
            )
        reserved, size = server_settings().stop_token_id, vllm_config.model_config.get_vocab_size()
        if reserved is not None and reserved >= size:
            raise LZPenaltyError(
                f"{VARIABLE}: stop_token_id = {reserved}: must be below {size}, the model's vocabulary."
            )
        device = torch.device(place if v1 else place.device)
        if device.type not in ("cpu", "cuda"):
            raise LZPenaltyError(
                f"vLLM runs on {device.type}, and the LZ penalty in vLLM knows cpu and cuda only: start it without {NAME}."
            )
        allow_pinning(bool(is_pin_memory) if v1 else _v2_pins_memory())
        slots = vllm_config.scheduler_config.max_num_seqs if v1 else place.max_num_reqs
        special = () if server_settings().penalise_special_tokens else special_tokens_of(vllm_config.model_config)
        settings = RequestSettings(server_settings(), special, slots, device)
        self._state: Any
        self._loops: Any = None
        counted = _counted_slots(vllm_config.parallel_config, slots, v1)
        counts = server_settings().count_loops and counted
        following = Following(vllm_config, counted)
        if v1:
            in_c = all_read_in_c(vllm_config.parallel_config.tensor_parallel_size, device)
            longest = vllm_config.model_config.max_model_len
            self._state = BatchState(settings, slots, longest, device, following, in_c)
            self._loops = BatchReader(self._state) if counts else None
        else:
            drafts = getattr(vllm_config.speculative_config, "num_speculative_tokens", 0)
            self._state = SlotState(settings, place, drafts, following)
            self._loops = SlotReader(place, drafts, counted) if counts else None

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Refuse bad `lz_*` fields when the request arrives; over HTTP that is status 400."""
        change_copies()
        try:
            asked = server_settings().settings_of(sampling_params.extra_args)
        except LZPenaltyError:
            count_request("refused")
            raise
        count_request("none" if asked is None else "penalised")
        prepare_end(sampling_params, asked if isinstance(asked, RequestPolicy) else None)

    def is_argmax_invariant(self) -> bool:
        """Greedy decoding needs the penalty too."""
        return False

    def apply(self, logits: torch.Tensor, ctx: Any = None) -> torch.Tensor:
        """Penalise `logits [rows, vocab]` in place; the V2 runner passes the step's layout too."""
        if ctx is not None:
            if self._loops is not None:
                self._loops.step(ctx, self._state.penalised)
            return self._state.apply(logits, ctx)
        if self._loops is not None:
            self._loops.step(batch_changes=False)
        return self._state.apply(logits)

    # ------------------------------------------------------------ V1 only

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Requests came, went or moved."""
        if batch_update is not None:
            if self._loops is not None:
                self._loops.step(batch_changes=True)
            self._state.update(batch_update)

    # ------------------------------------------------------------ V2 only

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        """A request takes a slot; returns whether it is penalised."""
        if self._loops is not None:
            self._loops.add_request(req_idx)
        return self._state.add_request(req_idx, sampling_params)

    def apply_staged_writes(self) -> None:
        """Send the settings of new requests to the device; called before the forward pass."""
        self._state.before_step()


def _v2_pins_memory() -> bool:
    from vllm.utils.platform_utils import is_pin_memory_available

    return is_pin_memory_available()


def _counted_slots(parallel: Any, slots: int, v1: bool) -> range:
    """The slots whose requests this process counts, so that of all tensor-parallel ranks exactly one counts each.

    With batch-sharded sampling, a rank of V2 samples only the slots that are `rank` modulo the number of ranks.
    """
    ranks = parallel.tensor_parallel_size
    rank = 0 if ranks == 1 else get_tensor_model_parallel_rank()
    if not v1 and getattr(parallel, "enable_batch_sharded_sampling", False):
        return range(rank, slots, ranks)
    return range(slots if rank == 0 else 0)


def _check_loaded_once(vllm_config: Any) -> None:
    """Listed exactly once: twice would penalise twice, and through an entry point alone output ids may be missing."""
    named = [_class_of(one) for one in vllm_config.model_config.logits_processors or ()]
    registered = [one.load() for one in entry_points(group="vllm.logits_processors")]
    times = [isinstance(one, type) and issubclass(one, LZPenaltyLogitsProcessor) for one in named + registered]
    if sum(times) != 1:
        raise LZPenaltyError(
            f"LZPenaltyLogitsProcessor is loaded {sum(times)} times (logits_processors = {named}, entry points = "
            f"{registered}): it must be once, or the penalty would be added again each time. Name {NAME} once."
        )
    if not any(times[: len(named)]):
        raise LZPenaltyError(
            "LZPenaltyLogitsProcessor was loaded through an entry point, where vLLM may hide the output ids from it: "
            f"name it with --logits-processors {NAME} instead."
        )


def _class_of(named: str | type) -> Any:
    return pkgutil.resolve_name(named) if isinstance(named, str) else named
