"""The class that vLLM loads.

It checks that the penalty can be exact in this engine, and passes every call on: to `V1State` for the V1 runner, to
`V2State` for the V2 runner.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor

from lz_penalty.engines._device import allow_pinning
from lz_penalty.engines._requests import SettingsReader
from lz_penalty.engines.server import server_settings
from lz_penalty.engines.vllm._counting import V1Loops, V2Loops
from lz_penalty.engines.vllm._ending import prepare_end, wrap_params_update
from lz_penalty.engines.vllm._no_wait import device_tokens
from lz_penalty.engines.vllm._registry import GenerationRegistry
from lz_penalty.engines.vllm._startup import (
    NAME,
    all_read_in_c,
    check_engine,
    check_loaded_once,
    counted_slots,
    special_tokens_of,
    v2_pins_memory,
)
from lz_penalty.engines.vllm._v1 import V1State
from lz_penalty.engines.vllm._v2 import V2State
from lz_penalty.errors import LZPenaltyError
from lz_penalty.policy import RequestPolicy, counters

try:
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as V2LogitsProcessor
except ImportError:  # vLLM before 0.31 has one interface
    BASES: tuple[type, ...] = (LogitsProcessor,)
else:
    BASES = (LogitsProcessor, V2LogitsProcessor)

__all__ = ["LZPenaltyLogitsProcessor"]


class LZPenaltyLogitsProcessor(*BASES):  # type: ignore[misc]
    """Adds the LZ penalty to the logits of the requests that ask for it, or of all if the server has a default.

    A request asks with the flat `lz_*` fields of `lz_penalty.policy.settings_from_request`, in `SamplingParams.extra_args`
    or, over HTTP, in `vllm_xargs`. `lz_penalty.engines.server` sets a default and caps for all requests.
    """

    def __init__(self, vllm_config: Any, device_or_states: Any, is_pin_memory: bool | None = None) -> None:
        """Make the state for the runner: V1 passes its device and whether memory can be pinned, V2 its request states."""
        check_loaded_once(LZPenaltyLogitsProcessor, NAME, vllm_config)
        v1 = is_pin_memory is not None
        device = torch.device(device_or_states if v1 else device_or_states.device)
        check_engine(vllm_config, device, v1)
        allow_pinning(bool(is_pin_memory) if v1 else v2_pins_memory())
        slots = vllm_config.scheduler_config.max_num_seqs if v1 else device_or_states.max_num_reqs
        special = () if server_settings().penalise_special_tokens else special_tokens_of(vllm_config.model_config)
        settings = SettingsReader(server_settings(), special, slots, device)
        counted = counted_slots(vllm_config.parallel_config, slots, v1)
        counts_loops = server_settings().count_loops and counted
        registry = GenerationRegistry(vllm_config, counted)
        self.device_tokens = device_tokens(vllm_config, v1)
        self._state: Any
        self._loops: Any = None  # counts loops; `None` if the server does not ask for that
        if v1:
            in_c = all_read_in_c(vllm_config.parallel_config.tensor_parallel_size, device)
            longest = vllm_config.model_config.max_model_len
            self._state = V1State(settings, slots, longest, device, registry, in_c, self.device_tokens)
            self._loops = V1Loops(self._state) if counts_loops else None
        else:
            drafts = getattr(vllm_config.speculative_config, "num_speculative_tokens", 0)
            self._state = V2State(settings, device_or_states, drafts, registry)
            self._loops = V2Loops(device_or_states, drafts, counted) if counts_loops else None

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Refuse bad `lz_*` fields when the request arrives; over HTTP that is status 400."""
        wrap_params_update()
        try:
            asked = server_settings().settings_of(sampling_params.extra_args)
        except LZPenaltyError:
            counters.count_request("refused")
            raise
        counters.count_request("none" if asked is None else "penalised")
        prepare_end(sampling_params, asked if isinstance(asked, RequestPolicy) else None)

    @classmethod
    def needs_output_token_ids(cls) -> bool:
        """Return True, for a vLLM that asks (none did up to 0.32): it must go on repairing its output lists.

        We leave most of these repairs out ourselves, one by one. If vLLM left them out, the ids would never be on the host.
        """
        return True

    def is_argmax_invariant(self) -> bool:
        """Return False: greedy decoding needs the penalty too."""
        return False

    def apply(self, logits: torch.Tensor, ctx: Any = None) -> torch.Tensor:
        """Penalise `logits [rows, vocab]` in place. `ctx` is the step's layout, on the V2 runner."""
        if ctx is not None:
            if self._loops is not None:
                self._loops.look(ctx, self._state.without_counts)
            return self._state.apply(logits, ctx)
        if self._loops is not None:
            self._loops.step(batch_changes=False)
        return self._state.apply(logits)

    # ------------------------------------------------------------ V1 only

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Apply the changes of the batch: requests came, went or moved."""
        if batch_update is not None:
            self.device_tokens.repair()
            if self._loops is not None:
                self._loops.step(batch_changes=True)
            self._state.update(batch_update)

    # ------------------------------------------------------------ V2 only

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        """Note a request that takes a slot; return whether it is penalised."""
        if self._loops is not None:
            self._loops.add_request(req_idx)
        return self._state.add_request(req_idx, sampling_params)

    def apply_staged_writes(self) -> None:
        """Send the settings of new requests to the device; called once per step, before the forward pass."""
        if self._loops is not None:
            self._loops.begin_step()
        self._state.before_step()
