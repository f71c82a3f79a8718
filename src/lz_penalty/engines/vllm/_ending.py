"""How a request ends that the ladder stops: the best way that this vLLM has, since a processor cannot end anything itself.

vLLM's worker and scheduler in one process   the last token of the run, and vLLM's own detection is told to find it:
(one GPU: the default)                       finish_reason "repetition"; not where requests share their parameters
a server with a `stop_token_id`              that token: finish_reason "stop", with it as stop_reason; not in a grammar
else                                         EOS, or a stop token of the request: finish_reason "stop"
the request ignores EOS, and has none        EOS again and again, until vLLM's detection finds it: "repetition"

For some of these the parameters must change before the scheduler has them. The object that arrives is the caller's, who
may use it again, so only vLLM's own copy of it is changed: vLLM validates the caller's, copies it, and fills the copy by
`update_from_generation_config`, all in one call. That method is where `change_copies` gets hold of the copy.
"""

from __future__ import annotations

import math
import threading
from functools import wraps
from typing import Any

from vllm import SamplingParams, envs

from lz_penalty.detection import Repetition
from lz_penalty.engines.server import server_settings
from lz_penalty.policy import RequestPolicy

try:
    from vllm.sampling_params import RepetitionDetectionParams
except ImportError:  # older releases end a request by tokens alone
    RepetitionDetectionParams = None

__all__ = ["Ending", "change_copies", "prepare_end"]

LEAST_COPIES = 16  # of one token: the shortest run that the ladder counts
SHARED = "_lz_shared"  # in `extra_args`: several requests have the same parameters
_CHANGES = "lz_penalty_changes_copies"  # attribute of the method that does
PATIENCE = 8  # tokens within which vLLM must have found a run; some were under way when it was told


class _Validated(threading.local):
    """The request that this thread has validated last: the caller's parameters, and the policy that they ask for."""

    params: Any = None
    asked: RequestPolicy | None = None


_validated = _Validated()


def prepare_end(params: Any, asked: RequestPolicy | None) -> None:
    """Let vLLM's copy of these parameters be one that can be ended; `None`: nothing is to be changed."""
    _validated.params, _validated.asked = params, asked


def change_copies() -> None:
    """Have vLLM's copies changed as `prepare_end` says, from now on in this process; called again, it does nothing."""
    original = SamplingParams.update_from_generation_config
    if hasattr(original, _CHANGES):
        return

    @wraps(original)
    def update_from_generation_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        asked, caller_owned = _validated.asked, self is _validated.params
        prepare_end(None, None)
        if asked is not None and not caller_owned:
            _prepare(self, asked)
        return original(self, *args, **kwargs)

    setattr(update_from_generation_config, _CHANGES, True)
    SamplingParams.update_from_generation_config = update_from_generation_config


def _prepare(params: Any, asked: RequestPolicy) -> None:
    """Change parameters that vLLM owns; lists and dictionaries in them may still be the caller's."""
    copies, reserved = asked.ladder.stop_copies, server_settings().stop_token_id
    if copies is None or asked.shadow:
        return
    if params.n > 1 and params.seed is None and not envs.VLLM_ENABLE_V1_MULTIPROCESSING:
        params.extra_args = {**(params.extra_args or {}), SHARED: True}
    stops = params.stop_token_ids or []
    if reserved is not None and params.structured_outputs is None:  # not every grammar lets it pass
        params.stop_token_ids = [*stops, *({reserved} - {*stops})]
    elif params.ignore_eos and not stops and _detection(params) is None:
        # Found in a run that the ladder would stop by itself, or in what the ladder forces.
        _detect(params, 1, max(LEAST_COPIES, math.ceil(copies)))
        if not params.stop:  # before `min_tokens` vLLM does not look; without stop strings nothing else could end it
            params.min_tokens = 0


class Ending:
    """How one request ends.

    Args:
        params: its sampling parameters.
        shared: whether they are the scheduler's own.
        eos_token_id: of the model, `None` if it has none.
    """

    def __init__(self, params: Any, shared: bool, eos_token_id: int | None) -> None:
        self._params = params
        self._eos_token_id = eos_token_id
        alone = SHARED not in (params.extra_args or {})
        self.by_run = shared and alone and RepetitionDetectionParams is not None

    def token(self, run: Repetition, place: int) -> int | None:
        """The token that must stand at this place of the output, behind the run; `None` if nothing can end it."""
        if self.by_run and _patient(run, place):
            return int(run.unit[(place - run.start) % run.period])
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

    def wait(self, run: Repetition, place: int) -> None:
        """So much of the output stands: the run has not ended the request if it should have by now."""
        self.by_run = self.by_run and _patient(run, place)

    def begin(self, run: Repetition) -> None:
        """Tell the scheduler, where that is possible."""
        if self.by_run:
            self._params.min_tokens = 0
            _detect(self._params, run.period, (run.length + 1) // run.period)  # with the token that comes now


def _patient(run: Repetition, place: int) -> bool:
    return place - run.start - run.length < PATIENCE


def _detection(params: Any) -> Any:
    return getattr(params, "repetition_detection", None)


def _detect(params: Any, period: int, copies: int) -> None:
    """Let vLLM end this request when its output ends with so many copies of a unit of this length."""
    if RepetitionDetectionParams is not None:
        params.repetition_detection = RepetitionDetectionParams(
            max_pattern_size=period, min_pattern_size=period, min_count=copies
        )
