"""How vLLM ends a request that the ladder stops. A processor cannot end one itself, so it uses the best way there is.

vLLM's worker and scheduler in one process   the last token of the run, and vLLM's own detection is told to find it:
(one GPU: the default)                       finish_reason "repetition"; not where requests share their parameters
a server with a `stop_token_id`              that token: finish_reason "stop", with it as stop_reason; not in a grammar
else                                         EOS, or a stop token of the request: finish_reason "stop"
the request ignores EOS, and has none        EOS again and again, until vLLM's detection finds it: "repetition"

Some of these ways need other sampling parameters before the scheduler has them. The object that arrives belongs to the
caller, who may use it again, so only vLLM's own copy is changed. In one call, vLLM validates the caller's object, copies it,
and completes the copy with `update_from_generation_config`. `wrap_params_update` wraps that method.
"""

from __future__ import annotations

import math
import threading
from functools import wraps
from typing import Any

from vllm import SamplingParams, envs
from vllm.logger import init_logger

from lz_penalty.detection import Repetition
from lz_penalty.engines._generation import Generation
from lz_penalty.engines.server import server_settings
from lz_penalty.policy import RequestPolicy

try:
    from vllm.sampling_params import RepetitionDetectionParams
except ImportError:  # older releases end a request by tokens alone
    RepetitionDetectionParams = None

__all__ = ["Ending", "prepare_end", "wrap_params_update"]

_LOGGER = init_logger("vllm.lz_penalty")  # so that vLLM shows it
ONE_TOKEN_COPIES = 16  # of a single token: the shortest run that counts for the ladder
OF_SEVERAL = "_lz_of_several"  # in `extra_args`: several requests have these parameters
_WRAPPED = "lz_penalty_changes_copies"  # an attribute of the wrapped method
PATIENCE = 8  # tokens within which vLLM must find a run: some are under way when it is told


class _Validated(threading.local):
    """The request that this thread validated last: the caller's parameters, and the policy in them."""

    params: Any = None
    asked: RequestPolicy | None = None


_validated = _Validated()


def prepare_end(params: Any, asked: RequestPolicy | None) -> None:
    """Have vLLM's copy of these parameters changed so that the request can be ended. `None`: nothing is changed."""
    _validated.params, _validated.asked = params, asked


def wrap_params_update() -> None:
    """From now on in this process, change vLLM's copies of parameters as `prepare_end` says. A second call does nothing."""
    original = SamplingParams.update_from_generation_config
    if hasattr(original, _WRAPPED):
        return

    @wraps(original)
    def update_from_generation_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        asked, caller_owned = _validated.asked, self is _validated.params
        prepare_end(None, None)
        if asked is not None and not caller_owned:
            _prepare(self, asked)
        return original(self, *args, **kwargs)

    setattr(update_from_generation_config, _WRAPPED, True)
    SamplingParams.update_from_generation_config = update_from_generation_config


def _prepare(params: Any, asked: RequestPolicy) -> None:
    """Change parameters that vLLM owns. The lists and dictionaries in them may still be the caller's."""
    copies, reserved = asked.ladder.stop_copies, server_settings().stop_token_id
    if copies is None or asked.shadow:
        return
    if params.n > 1 and params.seed is None and not envs.VLLM_ENABLE_V1_MULTIPROCESSING:
        params.extra_args = {**(params.extra_args or {}), OF_SEVERAL: True}
    stops = params.stop_token_ids or []
    if reserved is not None and params.structured_outputs is None:  # not every grammar lets it pass
        params.stop_token_ids = [*stops, *({reserved} - {*stops})]
    elif params.ignore_eos and not stops and _detection(params) is None:
        # vLLM finds a run that the ladder would stop too, or the row of EOS that the ladder forces.
        _detect(params, 1, max(ONE_TOKEN_COPIES, math.ceil(copies)))
        if not params.stop:  # then nothing else ends the request, and vLLM does not look for runs before `min_tokens`
            params.min_tokens = 0


class Ending:
    """How one request ends. `Generation` calls it.

    Args:
        params: the request's sampling parameters.
        is_schedulers: whether they are the scheduler's own object, which can then be changed.
        eos_token_id: of the model, `None` if it has none.
        logs: whether this process logs the end.

    Attributes:
        by_run: whether vLLM's own detection is told to find the run, whose last token is then forced.
        stop_adds: how many tokens of the run the ending writes; see `Tracker`.
    """

    def __init__(self, params: Any, is_schedulers: bool, eos_token_id: int | None, logs: bool = False) -> None:
        self._params = params
        self._eos_token_id = eos_token_id
        self._logs = logs
        alone = OF_SEVERAL not in (params.extra_args or {})
        self.by_run = is_schedulers and alone and RepetitionDetectionParams is not None
        self.stop_adds = int(self.by_run)

    def token(self, run: Repetition, length: int) -> int | None:
        """Return the token that must come after `length` tokens of the output; `None` if nothing can end the request."""
        if self.by_run and _patient(run, length):
            return int(run.unit[(length - run.start) % run.period])
        stops = self._params.stop_token_ids or []
        if (reserved := server_settings().stop_token_id) in stops and self._params.structured_outputs is None:
            return reserved
        if self._params.ignore_eos and stops:
            return stops[0]
        if self._params.ignore_eos and _detection(self._params) is None:
            return None
        return self._eos_token_id if self._eos_token_id is not None else next(iter(stops), None)

    @property
    def overrides_masks(self) -> bool:
        """Whether the token must come even if it is masked: in spite of `min_tokens`, but never in a grammar."""
        return not self.by_run and self._params.structured_outputs is None

    def wait(self, run: Repetition, length: int) -> None:
        """Give up on vLLM's detection if it has not found the run after `PATIENCE` tokens."""
        self.by_run = self.by_run and _patient(run, length)

    def begin(self, run: Repetition, generation: Generation) -> None:
        """Tell vLLM's detection what to find, where that is possible."""
        if self.by_run:
            self._params.min_tokens = 0
            _detect(self._params, run.period, (run.length + 1) // run.period)  # with the token that comes now
        if self._logs:
            cannot = generation.forced is None
            how = "cannot be ended, having no stop token and ignoring EOS" if cannot else "is ended"
            name = f"prompt of {len(generation.prompt)} tokens, output of {generation.length}"
            _LOGGER.info("a request %s: %.4g copies of %d tokens; %s", how, run.copies, run.period, name)


def _patient(run: Repetition, length: int) -> bool:
    return length - run.start - run.length < PATIENCE


def _detection(params: Any) -> Any:
    return getattr(params, "repetition_detection", None)


def _detect(params: Any, period: int, copies: int) -> None:
    """Let vLLM end this request when its output ends with so many copies of a unit of this length."""
    if RepetitionDetectionParams is not None:
        params.repetition_detection = RepetitionDetectionParams(
            max_pattern_size=period, min_pattern_size=period, min_count=copies
        )
