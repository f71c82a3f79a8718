"""The kinds of arrays that the op is prepared for. Triton compiles for each; see tests/kernels/test_warm_up.py."""

from functools import partial

from lz_penalty import prepare_lz_penalty
from lz_penalty.engines import _requests as request_settings
from lz_penalty.engines.vllm import LZPenaltyLogitsProcessor
from lz_penalty.engines.vllm import _v2 as slot_state


def record_kinds(state, setattr=setattr):
    """Record the kinds from now on; return the sets of the start and of the steps. `state` is the module that makes steps."""
    at_start, in_steps = set(), set()

    def recording(kinds, *given, ahead=False, **settings):
        kinds.add((ahead, *[one if one is None else (one.dtype, one.device, one.stride()[1:]) for one in given]))
        return prepare_lz_penalty(*given, ahead=ahead, **settings)

    setattr(request_settings, "prepare_lz_penalty", partial(recording, at_start))
    setattr(state, "prepare_lz_penalty", partial(recording, in_steps))
    return at_start, in_steps


class WarmProcessor(LZPenaltyLogitsProcessor):
    """Checks at every step that all kernels were compiled at the start. For the V2 runner only."""

    def __init__(self, *given):
        self.at_start, self.in_steps = record_kinds(slot_state)
        super().__init__(*given)

    def apply(self, logits, ctx):
        logits = super().apply(logits, ctx)
        assert self.in_steps <= self.at_start, f"{self.in_steps - self.at_start} not among {self.at_start}"
        return logits
