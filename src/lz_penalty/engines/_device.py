"""What every engine with a GPU does alike: exchange arrays with the device, compare in shadow mode, force a token.

With pinned memory nothing here makes the host wait for the device, except `Later.get` before the copy is there. Where memory
cannot be pinned, every copy makes it wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch

__all__ = ["Later", "Shadow", "allow_pinning", "force_", "moves_the_choice", "padded", "pins", "send", "store"]

_host = SimpleNamespace(pins=True)  # whether this process may pin memory; see `allow_pinning`


# ---------------------------------------------------------------- to the device


def allow_pinning(allowed: bool) -> None:
    """Say whether this process may pin host memory. An engine knows machines where it must not."""
    _host.pins = allowed


def pins(device: torch.device) -> bool:
    """Return whether arrays are exchanged with this device through pinned memory."""
    return device.type == "cuda" and _host.pins


def send(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """Return the array as a tensor on the device. On the CPU, the tensor is the array's own memory, not a copy.

    PyTorch keeps pinned memory until the copy to a GPU is done.
    """
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True) if pins(device) else tensor.to(device)


def padded(contexts: Sequence[Sequence[int]]) -> np.ndarray:
    """Return contexts of different lengths as one block `[contexts, longest]`, filled with zeros."""
    block = np.zeros((len(contexts), max(map(len, contexts))), dtype=np.int32)
    for line, context in zip(block, contexts, strict=True):
        line[: len(context)] = context
    return block


def store(history: torch.Tensor, slots: list[int], block: np.ndarray) -> None:
    """Write a block of contexts to the beginning of these slots of `history [slots, capacity]`."""
    slots_sent = send(np.array(slots), history.device)
    history[:, : block.shape[1]].index_copy_(0, slots_sent, send(block, history.device))


# ---------------------------------------------------------------- to the host


class Later:
    """A copy of a tensor that is on its way to the host."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._done: Any = None  # the CUDA event after which the copy is there
        if pins(tensor.device):
            self._copy, self._done = tensor.to("cpu", non_blocking=True), torch.cuda.Event()
            self._done.record()
        else:
            self._copy = tensor.to("cpu", copy=True)

    @property
    def is_there(self) -> bool:
        """Whether `get` would not wait."""
        return self._done is None or self._done.query()

    def get(self) -> torch.Tensor:
        """Return the copy; wait for it if it is not there yet."""
        if self._done is not None:
            self._done.synchronize()
            self._done = None
        return self._copy

    def __getitem__(self, index: int) -> Any:
        return self.get()[index].item()


# ---------------------------------------------------------------- shadow mode


def moves_the_choice(before: torch.Tensor, after: torch.Tensor) -> Later:
    """Return, for every row of logits, whether the most likely token before and after the penalty differ."""
    return Later(before.argmax(-1) != after.argmax(-1))


class Shadow:
    """The rows of a batch that are in shadow mode. The caller penalises the whole batch between `save` and `restore`.

    Args:
        device: where the logits are.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._chosen: list[int] = []
        self._rows = torch.zeros(0, dtype=torch.int64, device=device)
        self._saved = torch.zeros(0)

    def choose(self, rows: list[int]) -> None:
        """Say which rows are in shadow mode, until the next call."""
        if self._chosen != rows:
            self._chosen = rows
            self._rows = send(np.array(rows, dtype=np.int64), self._device)

    def save(self, logits: torch.Tensor) -> None:
        """Keep the logits of these rows, before the penalty."""
        if self._chosen:
            self._saved = logits.index_select(0, self._rows)

    def restore(self, logits: torch.Tensor) -> Later | None:
        """Write the kept logits back, after the penalty.

        Returns:
            For every row in shadow mode, in the order of `choose`, whether the penalty changed its most likely token.
            `None` if there is no such row.
        """
        if not self._chosen:
            return None
        flags = moves_the_choice(self._saved, logits.index_select(0, self._rows))
        logits.index_copy_(0, self._rows, self._saved)
        return flags


# ---------------------------------------------------------------- forcing a token


def force_(
    logits: torch.Tensor, row: int, token: int, masks: Literal["obeyed", "overridden", "to come"] = "obeyed"
) -> None:
    """Make one token certain in a row of `logits [rows, vocab]`, in place.

    Args:
        logits: of the batch.
        row: which row.
        token: which token. One outside of the vocabulary changes nothing: a tokenizer may have tokens that the model
            does not know, and a request may name any id as its stop token.
        masks: `"obeyed"`: if the token is masked (-inf), nothing changes. `"overridden"`: the token is certain even if it
            is masked. `"to come"`: the engine applies its masks later, so the other tokens keep their logits.
    """
    if not 0 <= token < logits.shape[1]:
        return
    line = logits[row]
    if masks == "to come":
        line[token].fill_(min(1e30, torch.finfo(logits.dtype).max / 16))
    elif masks == "overridden":
        line.fill_(-torch.inf)
        line[token].fill_(0.0)
    else:
        kept = line[token].clone()
        line.masked_fill_(kept > -torch.inf, -torch.inf)
        line[token] = kept
