"""A second plug-in, which checks the logits of ours in a running engine.

Rows without the penalty, in shadow mode or in a section without a penalty must stay bit-identical; else the scheduler ends.
The plug-in counts events in the file `$SPYING`. `$BREAKING` names a way to break our plug-in after SGLang has imported it.
"""

import json
import multiprocessing
import os
import sys
from collections import Counter
from pathlib import Path

import torch
from sglang.srt.plugins.hook_registry import HookRegistry

from lz_penalty.engines.sglang._history import INDICES, LOGITS, History

_counts: Counter = Counter()
_apply, _load, _warm_up = History.apply, History.load, History.warm_up


def a_module_is_missing():
    sys.modules["lz_penalty.engines.sglang._hooks"] = None


def a_hook_fails_in_a_child():
    """Fail in a hook; SGLang logs that and goes on."""
    if multiprocessing.parent_process() is not None:
        apply_target = HookRegistry._apply_target
        HookRegistry._apply_target = lambda target, hooks: (
            1 / ("ModelRunner" not in target) and apply_target(target, hooks)
        )


if "BREAKING" in os.environ:
    globals()[os.environ["BREAKING"]]()


def register():
    if "SPYING" in os.environ:
        History.apply, History.load, History.warm_up = apply, load, warm_up


def warm_up(self):
    _counts["warm-ups"] += 1
    _warm_up(self)


def apply(self, step, logits, batch):
    assert _counts["warm-ups"] == 1
    assert logits.dtype == LOGITS  # the types that the kernels were compiled for
    assert {batch.seq_lens.dtype, batch.req_pool_indices.dtype, batch.input_ids.dtype} == {INDICES}
    before = logits.clone()
    _apply(self, step, logits, batch)
    plain = [row for row, request in enumerate(step.requests) if request is None or untouched(request)]
    assert torch.equal(before[plain].view(torch.int32), logits[plain].view(torch.int32))
    _counts["rows"] += len(step.requests)
    _counts["rows without the penalty"] += len(plain)
    _counts["rows that changed"] += int((before != logits).any(1).sum())
    _counts["mixed steps"] += step.newest_at is not None and bool((step.newest_at >= 0).any())
    Path(os.environ["SPYING"]).write_text(json.dumps(_counts))


def untouched(request):
    generation = request.generation
    if generation is None or generation.forced is not None:
        return False
    return generation.shadow or not request.settings_row.any()


def load(self, loads):
    _counts["reloads"] += sum(request.settings is not None for request, *_ in loads)
    _counts["slots taken again"] += sum(slot in self.__dict__.setdefault("slots", set()) for _, _, slot, *_ in loads)
    self.slots.update(slot for _, _, slot, *_ in loads)
    _load(self, loads)
