"""The C header in the form of the op, so that the one check of a backend applies to it."""

from __future__ import annotations

from typing import Any

import numpy as np

from lz_penalty import LZPenaltyConfig
from lz_penalty.native import NativePenalty
from tests.support import cases


def op(*, logits, token_ids, lengths, starts, row_to_slot, tail_ids, tail_lengths, newest_ids, config, vocab_size, **_):
    """The op on rows, by one call of the header for each."""
    configs = [config] * len(logits) if isinstance(config, LZPenaltyConfig) else config
    for row in range(len(logits)):
        slot = row if row_to_slot is None else row_to_slot[row]
        end = token_ids.shape[1] if lengths is None else int(lengths[row])
        if newest_ids is not None and newest_ids[row] >= 0:
            token_ids[slot, end - 1] = newest_ids[row]
        context = token_ids[slot, 0 if starts is None else starts[row] : end]
        if tail_ids is not None:
            context = np.concatenate([context, tail_ids[row][: None if tail_lengths is None else tail_lengths[row]]])
        if configs[row] is not None:
            NativePenalty(configs[row]).apply_(logits[row], context.astype(np.int32), vocab_size)


def trial(case: cases.Case, op: Any = op) -> cases.Trial:
    """`cases.Trial`, with the settings as configs; changes the case."""

    def on_configs(*, config, **given):
        op(config=case.configs, **given)

    case.newest_ids = None  # who writes them where nothing is penalised is the op's affair
    return cases.Trial(case, np, "native", op=on_configs)


def disagreement(case: cases.Case, op: Any = op) -> str | None:
    """`cases.disagreement` for the header."""
    tried = trial(case, op)
    tried.run()
    return tried.problem()
