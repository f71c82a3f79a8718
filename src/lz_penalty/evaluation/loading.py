"""Load a model: check the device and the type of its weights first, then read it with transformers.

The module imports without torch, because sweeps on servers need only its checks.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any, NamedTuple

from lz_penalty._checks import choice
from lz_penalty.errors import LZPenaltyError, bad_value
from lz_penalty.explain._sources import BUNDLED, SMOLLM2, gguf_problem, not_loaded, set_ends, smollm2_file, source

__all__ = ["BUNDLED", "SMOLLM2", "Loaded", "check_dtype", "device_name", "load", "smollm2_problem", "usable_device"]

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


def smollm2_problem() -> str | None:
    """Return why the model `smollm2` cannot be loaded here; `None` if it can."""
    return gguf_problem() if smollm2_file() else "it is not installed"


def load(name: str, device: str = "auto", dtype: str = "auto") -> Loaded:
    """Load `bundled`, `smollm2`, a GGUF file, a Hugging Face id or a folder; one clear error if that fails."""
    device = usable_device(device)
    check_dtype("--dtype", dtype)
    from transformers import AutoModelForCausalLM, AutoTokenizer

    _disable_progress_bars()
    path, options = found = source(name)
    if dtype == "auto" and device == "cpu":
        dtype = "float32"  # the fastest type on a CPU
    # RuntimeError: too little memory on the device. A damaged GGUF file raises errors of any kind.
    failures = (Exception,) if options else (OSError, ValueError, RuntimeError)
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, **options)
        model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, **options)
        model = model.to(device).eval()
    except failures as error:
        raise not_loaded("model", name, found, error) from None
    if len(tokenizer) > model.get_output_embeddings().weight.shape[0]:
        raise LZPenaltyError(
            f"model {name!r}: its tokenizer has {len(tokenizer)} tokens, more than the model's "
            f"{model.get_output_embeddings().weight.shape[0]} logits: they do not belong together."
        )
    if options:
        model.generation_config.eos_token_id = set_ends(tokenizer, model.config) or None
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "left"
    return Loaded(model, tokenizer)


def _disable_progress_bars() -> None:
    """Turn off the progress bars of transformers, also the one of its reader for GGUF files."""
    from tqdm.auto import tqdm
    from transformers import modeling_gguf_pytorch_utils as gguf_reader
    from transformers.utils import logging

    logging.disable_progress_bar()
    gguf_reader.tqdm = partial(tqdm, disable=True)  # transformers' own switch does not reach it
