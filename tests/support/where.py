"""The device for tests of the engines' rows: a CUDA device if there is one, and then nothing may wait for it."""

import warnings
from contextlib import contextmanager

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@contextmanager
def nothing_waits():
    """Raise if the host waits for the device."""
    if DEVICE.type == "cuda":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns, once, that this mode is a prototype
            torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        if DEVICE.type == "cuda":
            torch.cuda.set_sync_debug_mode("default")
