"""Which devices a model can run on here; asked before anything is loaded."""

from __future__ import annotations

import re
from typing import Any

from lz_penalty._checks import choice
from lz_penalty.errors import LZPenaltyError, bad_value

__all__ = ["check_dtype", "device_name", "usable_device"]

check_dtype = choice("auto", "float32", "float64", "bfloat16", "float16")


def device_name(name: str, value: Any) -> str:
    """Raise unless this names a device; it need not be there."""
    if not isinstance(value, str) or not re.fullmatch(r"auto|cpu|mps|cuda(:\d{1,3})?", value, re.ASCII):
        raise bad_value(name, value, "auto, cpu, cuda, cuda:0 or another number, or mps")
    return value


def usable_device(value: str, name: str = "--device") -> str:
    """The device that is meant, `auto` resolved; raises where it is not there."""
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
