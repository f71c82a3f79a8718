"""Record how a model continues a prompt under penalties, for the explorer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from lz_penalty.engines._special_tokens import special_token_ids
from lz_penalty.errors import LZPenaltyError
from lz_penalty.evaluation.generation import decode
from lz_penalty.evaluation.loading import Loaded
from lz_penalty.evaluation.penalties import Penalty
from lz_penalty.explain._recording import FORMAT, MAX_TOKENS, checked_recording
from lz_penalty.explain._tokenizing import decoder

__all__ = ["record"]


def record(
    loaded: Loaded,
    prompt: Sequence[int],
    penalties: Sequence[Penalty],
    *,
    new_tokens: int,
    may_end: bool = False,
    top: int = 12,
    name: str,
    about: str = "",
    model_name: str = "bundled",
) -> dict[str, Any]:
    """Continue the prompt greedily under each penalty, and keep the model's own logits of the `top` likeliest tokens.

    A run that may end before `new_tokens` contains its end token. The explorer shows `name`, `about` (a sentence or two) and
    `model_name`.
    """
    if not prompt:
        raise LZPenaltyError("the prompt is empty: a model needs at least one token to continue from.")
    if len(prompt) + new_tokens > MAX_TOKENS:
        raise LZPenaltyError(
            f"{len(prompt):,} tokens and {new_tokens:,} new ones: a recording contains at most {MAX_TOKENS:,} together."
        )
    special, decode = special_token_ids(loaded.tokenizer), decoder(loaded.tokenizer)
    runs = [_run(loaded, prompt, penalty, new_tokens, may_end, top) for penalty in penalties]
    used = {*prompt, *(token for run in runs for pairs in run["top"] for token in pairs[::2])}
    recording = {
        "format": FORMAT,
        "name": name,
        "about": about,
        "model": model_name,
        "vocab_size": loaded.model.get_output_embeddings().weight.shape[0],
        "special": list(special),
        "prompt": list(prompt),
        "texts": {str(token): decode([token]) for token in sorted(used)},
        "runs": runs,
    }
    return checked_recording(recording)


def _run(
    loaded: Loaded, prompt: Sequence[int], penalty: Penalty, new_tokens: int, may_end: bool, top: int
) -> dict[str, Any]:
    steps: list[torch.Tensor] = []
    (written,) = decode(
        loaded, [prompt], penalty, new_tokens, may_end=may_end, watch=lambda logits: steps.append(logits[0].double())
    )
    tokens = written.tokens if written.end is None else [*written.tokens, written.end]
    kept, normalisers = [], []
    for token, logits in zip(tokens, steps):
        normalisers.append(round(torch.logsumexp(logits, 0).item(), 3))
        likeliest = logits.topk(min(top, len(logits))).indices.tolist()
        chosen = [*likeliest, *([] if token in likeliest else [token])]
        kept.append([part for one in chosen for part in (one, round(logits[one].item(), 3))])
    return {
        "penalty": penalty.name,
        "config": penalty.config and asdict(penalty.config),
        "tokens": tokens,
        "log_normalisers": normalisers,
        "top": kept,
    }
