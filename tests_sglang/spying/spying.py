"""A second plug-in, which looks over the shoulder of ours in a running engine.

Rows without the penalty, or in shadow mode, or in a section without one, must keep their bits, or the scheduler dies.
What happened is counted in the file `$SPYING`.
"""

import json
import os
from collections import Counter
from pathlib import Path

import torch

from lz_penalty.engines.sglang.history import History

_counts: Counter = Counter()
_apply, _load = History.apply, History.load


def register():
    if "SPYING" in os.environ:
        History.apply, History.load = apply, load


def apply(self, step, logits, batch):
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
    watched = request.watched
    if watched is None or watched.forced is not None:
        return False
    return watched.shadow or not request.line.any()


def load(self, loads):
    _counts["reloads"] += sum(request.settings is not None for request, *_ in loads)
    _counts["slots taken again"] += sum(slot in self.__dict__.setdefault("slots", set()) for _, _, slot, *_ in loads)
    self.slots.update(slot for _, _, slot, *_ in loads)
    _load(self, loads)
