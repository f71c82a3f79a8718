"""Load a model: check the device and the type of its weights first, then read it with transformers.

The module imports without torch, because sweeps on servers need only its checks.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from lz_penalty._checks import choice
from lz_penalty.errors import LZPenaltyError, bad_value

__all__ = ["BUNDLED", "Loaded", "check_dtype", "device_name", "load", "usable_device"]

BUNDLED = "bundled"

check_dtype = choice("auto", "float32", "float64", "bfloat16", "float16")


class Loaded(NamedTuple):
    """A model and its tokenizer."""

    model: Any
    tokenizer: Any


def device_name(name: str, value: Any) -> str:
    """Return the name of a device, which need not exist here; raise an error for anything else."""
    if not isinstance(value, str) or not re.fullmatch(r"auto|cpu|mps|cuda(:\d{1,3})?", value, re.ASCII):
        raise bad_value(name, value, "auto, cpu, cuda, cuda:0 or another number, or mps")
    return value


def usable_device(value: str, name: str = "--device") -> str:
    """Return a device that exists here, with `auto` resolved; raise an error if it does not exist."""
    import torch

    device = device_name(name, value)
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if device == "auto":
        return "cuda" if cuda else "mps" if mps else "cpu"
    kind, _, number = device.partition(":")
    if (kind == "cuda" and not cuda) or (kind == "mps" and not mps):
        raise LZPenaltyError(f"{name} {device}: torch {torch.__version__} finds no such device here; use cpu or auto.")
    if number and int(number) >= torch.cuda.device_count():
        last = torch.cuda.device_count() - 1
        raise LZPenaltyError(f"{name} {device}: there is no such device; the last one is cuda:{last}.")
    return device


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
        dtype = "float32"  # the fastest type on a CPU
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
        model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
        model = model.to(device).eval()
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: too little memory on the device
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
