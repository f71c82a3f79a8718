"""The V1 runner without the wait for the newest tokens: the kernels read them on the device.

With asynchronous scheduling, vLLM launches a step before the host has the tokens of the previous step. Each of its output
lists then ends with -1, a placeholder. vLLM repairs the lists at each step if it has any custom processor: just before the
processors run, `InputBatch.update_async_output_token_ids` waits for the tokens and writes them into the lists.

`device_tokens` wraps this method, once, for all batches of the process:

    before the processors run    DeviceTokens.before_sampling(batch)
        nobody needs the lists   replace the placeholders of the previous call (`LateRepair`), note those of this one, and
                                 tell `V1State` where the tokens are on the device. Nothing waits
        somebody needs them      replace the placeholders of the previous call, and let vLLM do its own method
    requests come or go          DeviceTokens.repair(): those who look at the lists then see at most the last placeholder
    the step needs a token       DeviceTokens.ids_now(): vLLM's own method, in the middle of the step; for a history that is
    on the host                  loaded again

The lists are needed by vLLM's penalties, bad words and thinking budget, by other processors, and by policies. vLLM's method
takes all placeholders at the end of a list for one step. So no placeholder may be left when it runs, except the last.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
import vllm
from vllm.logger import init_logger
from vllm.v1.sample.logits_processor.builtin import (
    LogitBiasLogitsProcessor,
    MinPLogitsProcessor,
    MinTokensLogitsProcessor,
)

from lz_penalty.engines.server import server_settings
from lz_penalty.engines.vllm._known_vllm import first_unknown
from lz_penalty.engines.vllm._late_repair import LateRepair

__all__ = ["DeviceTokens", "device_tokens"]

_LOGGER = init_logger("vllm.lz_penalty")  # so that vLLM shows it
_ORIGINAL = "lz_penalty_original"  # an attribute of the wrapped method
_READ_NO_TOKENS = (MinPLogitsProcessor, MinTokensLogitsProcessor, LogitBiasLogitsProcessor)
_of_processors: WeakKeyDictionary[Any, DeviceTokens | None] = WeakKeyDictionary()


class DeviceTokens:
    """The newest tokens of the batch in a step in which only the device has them.

    Args:
        is_used: whether vLLM's method is wrapped. If not, `sampled` is always `None`.

    Attributes:
        is_used: as given.
        sampled: int32 `[n, 1]`, the tokens of the previous step on the device. `None`: vLLM's lists are complete.
        policies: whether a request of the batch has a policy, which reads its tokens on the host. `V1State` sets it.
    """

    def __init__(self, is_used: bool) -> None:
        self.is_used = is_used
        self.sampled: torch.Tensor | None = None
        self.policies = False
        self._arrived: Any = None  # the event after which the copy of `sampled` is on the host
        self._step: tuple[Any, Callable[[Any], None]] | None = None  # vLLM's batch and method, while `sampled` is set
        self._metadata: Any = None  # of the last call; another object means that the batch has changed since
        self._waits = False
        self._repair = LateRepair((), ())
        self._in_place = np.zeros(0, dtype=np.int32)
        self._has_moved = False  # whether `sources` is not `_in_place`

    @property
    def sources(self) -> np.ndarray:
        """The row of each row's token in `sampled`, int32; -1 if it has none there."""
        return self._repair.sources

    def addresses(self) -> tuple[int, int]:
        """Return the address of `sampled`, and the handle of an event after it; 0 and 0 if vLLM's lists are complete.

        The event is that of vLLM's copy of `sampled` to the host. It also comes after all kernels of the previous step.
        """
        return (0, 0) if self.sampled is None else (self.sampled.data_ptr(), self._arrived.cuda_event)

    def before_sampling(self, batch: Any, original: Callable[[Any], None]) -> None:
        """Do what `InputBatch.update_async_output_token_ids` does, without waiting if that is possible.

        Args:
            batch: vLLM's `InputBatch`.
            original: that method.
        """
        repair = self._repair
        repair.repair()
        if batch.sampling_metadata is not self._metadata:
            repair = self._batch_changed(batch)
        elif self._has_moved:
            repair.sources[:] = self._in_place
            self._has_moved = False
        sampled, on_host = batch.prev_sampled_token_ids, batch.sampled_token_ids_cpu
        usable = sampled is not None and sampled.dtype is torch.int32 and on_host is not None
        if self._waits or not usable or not _is_known(batch.async_copy_ready_event, sampled):
            self.sampled = None
            original(batch)
            return
        repair.note(on_host, batch.async_copy_ready_event)
        self.sampled, self._arrived, self._step = sampled, batch.async_copy_ready_event, (batch, original)

    def _batch_changed(self, batch: Any) -> LateRepair:
        self._metadata = batch.sampling_metadata
        self._waits = self.policies or _vllm_needs_lists(batch)
        before = batch.prev_req_id_to_index or {}
        sources = [before.get(name, -1) for name in batch.req_ids]
        self._repair = LateRepair(batch.req_output_token_ids, sources)
        self._in_place, self._has_moved = np.arange(len(sources), dtype=np.int32), True
        return self._repair

    def repair(self) -> None:
        """Replace the placeholders that were noted in the previous step."""
        self._repair.repair()

    def ids_now(self) -> None:
        """Have vLLM wait for the newest tokens and write them into its lists, if they are not there yet."""
        if self._step is not None:
            batch, original = self._step
            self._repair.forget()
            original(batch)
        self.end_step()

    def end_step(self) -> None:
        """Forget where the tokens are: vLLM drops the array after the step."""
        self.sampled = self._arrived = self._step = None


def _is_known(arrived: Any, sampled: torch.Tensor) -> bool:
    """Return whether C can use the event. A subclass of vLLM's runner may have one of another type."""
    return not sampled.is_cuda or hasattr(arrived, "cuda_event")


def _vllm_needs_lists(batch: Any) -> bool:
    """Return whether vLLM itself reads the lists, as `InputBatch._make_sampling_metadata` decides it."""
    thinking = batch.thinking_budget_state_holder
    return (
        not batch.no_penalties
        or bool(batch.bad_words_token_ids)
        or (thinking is not None and thinking.has_tracked_requests())
    )


# ---------------------------------------------------------------- the wrapped method


def device_tokens(vllm_config: Any, v1: bool = True) -> DeviceTokens:
    """Return a processor's `DeviceTokens`. Where the tokens can be left on the device, wrap vLLM's method.

    If the operator asks for that and it cannot be done, log why.
    """
    if server_settings().wait_for_tokens:
        return DeviceTokens(is_used=False)
    if not v1:
        return _not_used("the V2 runner has the tokens on the device anyway")
    from vllm.v1.worker.gpu_input_batch import InputBatch  # only in a worker: the API server imports this module too

    if not _has_two_steps_under_way(vllm_config):
        return _not_used("this vLLM runs without asynchronous scheduling, or with pipeline parallelism")
    found = InputBatch.update_async_output_token_ids
    unknown = first_unknown(getattr(found, _ORIGINAL, found))
    if unknown is not None:
        return _not_used(f"lz-penalty does not know {unknown} of vLLM {vllm.__version__}, so vLLM waits at each step")
    if not hasattr(found, _ORIGINAL):
        InputBatch.update_async_output_token_ids = _wrapped(found)
    return DeviceTokens(is_used=True)


def _not_used(reason: str) -> DeviceTokens:
    _log_no_effect(reason)
    return DeviceTokens(is_used=False)


def _log_no_effect(reason: str) -> None:
    _LOGGER.warning("wait_for_tokens = false has no effect: %s.", reason)


def _has_two_steps_under_way(vllm_config: Any) -> bool:
    """Return whether vLLM launches a step before the tokens of the previous one are there, and only one step before."""
    return (
        bool(vllm_config.scheduler_config.async_scheduling)
        and vllm_config.parallel_config.pipeline_parallel_size == 1
        and vllm_config.max_concurrent_batches == 2
    )


def _wrapped(original: Callable[[Any], None]) -> Callable[[Any], None]:
    @wraps(original)
    def update_async_output_token_ids(self: Any) -> None:
        tokens = _tokens_of(self.logitsprocs)
        if tokens is None:
            original(self)
        else:
            tokens.before_sampling(self, original)

    setattr(update_async_output_token_ids, _ORIGINAL, original)
    return update_async_output_token_ids


def _tokens_of(processors: Any) -> DeviceTokens | None:
    """Return the `DeviceTokens` of the one processor that reads tokens, if it is ours; `None`: vLLM must wait."""
    try:
        return _of_processors[processors]
    except KeyError:
        readers = [one for one in processors.all if type(one) not in _READ_NO_TOKENS]
        tokens = getattr(readers[0], "device_tokens", None) if len(readers) == 1 else None
        _of_processors[processors] = tokens if tokens is not None and tokens.is_used else None
        if len(readers) > 1 and not server_settings().wait_for_tokens:
            others = ", ".join(type(one).__name__ for one in readers if getattr(one, "device_tokens", None) is None)
            _log_no_effect(f"these processors may read the tokens, so vLLM waits at each step: {others}")
        return _of_processors[processors]
