"""`GenerationRegistry`: makes the `Generation` of every request with a policy, and counts it when the request has left."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from vllm.logger import init_logger

from lz_penalty.engines._generation import Generation
from lz_penalty.engines._requests import Settings
from lz_penalty.engines.vllm._ending import Ending
from lz_penalty.engines.vllm._startup import reading_of_model, tokenizer_of
from lz_penalty.policy import counters

__all__ = ["GenerationRegistry"]

_LOGGER = init_logger("vllm.lz_penalty")  # so that vLLM shows it


class GenerationRegistry:
    """Makes the generation of every request with a policy, and adds its totals to the counters when the request has left.

    Args:
        vllm_config: of the engine.
        counted: slots whose requests this process counts and logs. Other ranks count the others.

    Attributes:
        reading: how the model's texts are read.
        shares_params: whether a worker has the scheduler's own `SamplingParams`, and can tell it how to end a request.
    """

    def __init__(self, vllm_config: Any, counted: range) -> None:
        self.reading = reading_of_model(vllm_config.model_config)
        self.shares_params = vllm_config.parallel_config.distributed_executor_backend == "uni"
        self._eos_token_id = getattr(tokenizer_of(vllm_config.model_config), "eos_token_id", None)
        self._counted = counted
        self._left: deque[Generation] = deque()  # not counted yet: something is still on its way from the device
        if counted:
            counters.register()

    def start(self, settings: Settings, params: Any, prompt: Sequence[int], slot: int) -> Generation:
        """Return a new generation for the request that takes this slot."""
        assert settings.asked is not None
        ending = Ending(params, self.shares_params, self._eos_token_id, logs=slot in self._counted)
        return Generation(self.reading, settings.asked, prompt, settings_rows=settings.settings_rows, ending=ending)

    def note_left(self, slot: int, generation: Generation) -> None:
        """Note that a request has left its slot. It is counted now, or later by `count_left`."""
        if slot in self._counted:
            self._left.append(generation)
            self.count_left()

    def count_left(self) -> None:
        """Count the requests that have left, as far as all their numbers have arrived from the device."""
        while self._left and self._left[0].is_complete:
            generation = self._left.popleft()
            amounts = generation.count()
            if any(amounts.values()):
                # vLLM does not tell a processor the request's id.
                name = f"prompt of {len(generation.prompt)} tokens, output of {generation.length}"
                _LOGGER.info("a request with a policy: %s; %s", amounts, name)
