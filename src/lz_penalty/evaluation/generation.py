"""Running a Hugging Face model: loading it, and greedy continuations of many prompts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lz_penalty.errors import LZPenaltyError
from lz_penalty.evaluation.devices import check_dtype, usable_device
from lz_penalty.evaluation.penalties import Penalty

__all__ = ["BUNDLED", "UNCHANGED", "Continuations", "Loaded", "continue_greedily", "load"]

BUNDLED = "bundled"
# For `generate`: without it a model's own generation config would add penalties to the one that was asked for.
UNCHANGED = {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "min_length": 0, "num_beams": 1}


class Loaded(NamedTuple):
    """A model and its tokenizer."""

    model: Any
    tokenizer: Any


class Continuations(NamedTuple):
    """New tokens per prompt, and how fast they came."""

    tokens: list[list[int]]
    tokens_per_second: float


def load(name: str, device: str = "auto", dtype: str = "auto") -> Loaded:
    """Load `bundled`, a Hugging Face id or a folder; one clear error if that fails."""
    device = usable_device(device)
    check_dtype("--dtype", dtype)
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    from lz_penalty import bundled_model

    logging.disable_progress_bar()
    path: str | Path = bundled_model.path() if name == BUNDLED else name
    if dtype == "auto" and device == "cpu":
        dtype = "float32"  # the fast one on a CPU
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
        model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
        model = model.to(device).eval()
    except (OSError, ValueError, RuntimeError) as error:  # the last: too little memory on the device
        reason = str(error).strip().split("\n")[0]
        raise LZPenaltyError(f"model {name!r} cannot be loaded: {reason}") from None
    if len(tokenizer) > model.get_output_embeddings().weight.shape[0]:
        raise LZPenaltyError(
            f"model {name!r}: its tokenizer has {len(tokenizer)} tokens, more than the model's "
            f"{model.get_output_embeddings().weight.shape[0]} logits: they do not belong together."
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "left"
    return Loaded(model, tokenizer)


def continue_greedily(
    loaded: Loaded,
    prompts: Sequence[Sequence[int]],
    penalty: Penalty,
    new_tokens: int,
    *,
    may_end: bool,
    batch: int = 32,
    tick: Callable[[int], None] = lambda count: None,
) -> Continuations:
    """Continue every prompt by up to `new_tokens` tokens, the most probable one each time.

    Args:
        loaded: the model.
        prompts: token ids.
        penalty: what is added to the logits.
        new_tokens: how many to write.
        may_end: whether the model may end before that; where not, its end tokens are masked.
        batch: how many prompts at a time; they are padded on the left.
        tick: called with the number of prompts done, for a progress bar.
    """
    model, tokenizer = loaded
    ends = model.generation_config.eos_token_id
    ends = set(ends if isinstance(ends, list) else [ends])
    out: list[list[int]] = []
    seconds = 0.0
    for first in range(0, len(prompts), batch):
        group = [list(prompt) for prompt in prompts[first : first + batch]]
        width = max(map(len, group))
        pad = tokenizer.pad_token_id
        ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in group], device=model.device)
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in group], device=model.device)
        begin = time.perf_counter()
        result = model.generate(
            ids,
            attention_mask=mask,
            **UNCHANGED,
            logits_processor=penalty.make(tokenizer, width),
            do_sample=False,
            max_new_tokens=new_tokens,
            min_new_tokens=None if may_end else new_tokens,
            pad_token_id=pad,
        )
        seconds += time.perf_counter() - begin
        for row in result[:, width:].tolist():
            end = next((i for i, token in enumerate(row) if may_end and token in ends), len(row))
            out.append(row[:end])
        tick(len(group))
    written = sum(len(tokens) for tokens in out)
    return Continuations(out, written / seconds if seconds else 0.0)
