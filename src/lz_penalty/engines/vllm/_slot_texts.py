"""The newest tokens of the V2 runner's requests, which only the device knows, for generations on the host.

They are asked for before a step's forward pass is queued, and waited for after it. So the copy waits for the previous step
only, and the device has work meanwhile.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from lz_penalty.engines._device import Later, send
from lz_penalty.engines._generation import Generation

__all__ = ["SlotTexts", "newest_tokens"]


def newest_tokens(states: Any, slots: torch.Tensor, count: int) -> torch.Tensor:
    """Return int32 `[slots, 1 + count]` on the device: of every slot its length and its last `count` tokens.

    Args:
        states: vLLM's request states.
        slots: int64 `[slots]`, on the device.
        count: how many tokens. A shorter text is filled from the left with its first token.
    """
    lengths = states.total_len.gpu.index_select(0, slots)
    place = lengths[:, None] - count + torch.arange(count, device=slots.device)
    tokens = states.all_token_ids.gpu[slots[:, None], place.clamp_(min=0)]
    return torch.cat([lengths[:, None], tokens], dim=1)


class Asked(NamedTuple):
    """What is on its way to the host.

    Attributes:
        newest: of every slot with a policy its length and last tokens; see `newest_tokens`.
        wholes: all tokens of the slots whose text was not read yet.
        unread: slots that were not read from it.
    """

    newest: Later
    wholes: dict[int, Later]
    unread: set[int]


class SlotTexts:
    """Lets every generation read the tokens that its request has gained.

    Args:
        states: vLLM's request states, read only.
        drafts: the most draft tokens that a request can have in a step.
        generations: by slot. The caller changes them, and calls `took` when a request takes a slot.
    """

    def __init__(self, states: Any, drafts: int, generations: dict[int, Generation]) -> None:
        self._states = states
        self._count = 1 + drafts
        self._generations = generations
        self._unread: set[int] = set()
        self._slots: torch.Tensor | None = None
        self._asked: Asked | None = None

    def took(self, slot: int) -> None:
        """Note that another request has taken this slot."""
        self._unread.discard(slot)
        if slot in self._generations:
            self._unread.add(slot)
        self._slots = self._asked = None

    def forget(self) -> None:
        """Drop what was asked for: it is not needed, and will be old."""
        self._asked = None

    def ask(self) -> Asked:
        """Ask for the texts, before the forward pass."""
        if self._slots is None:
            self._slots = send(np.array(list(self._generations), dtype=np.int64), self._states.device)
        wholes = {slot: self._whole(slot) for slot in self._unread}
        newest = Later(newest_tokens(self._states, self._slots, self._count))
        self._asked = Asked(newest, wholes, set(self._generations))
        return self._asked

    def _whole(self, slot: int) -> Later:
        """Ask for all tokens that a request came with."""
        return Later(self._states.all_token_ids.gpu[slot, : int(self._states.prefill_len.np[slot])])

    def read(self, slots: list[int]) -> dict[int, bool]:
        """Let the generations in these slots read on; return for each whether its settings may have changed.

        vLLM may divide the batch of a step. Then each part reads its slots from what was asked for once.
        """
        asked, wanted = self._asked, self._generations.keys() & set(slots)
        if asked is None or not wanted <= asked.unread:
            asked = self.ask()
        asked.unread.difference_update(wanted)
        changed = {}
        for slot, (length, *newest) in zip(self._generations, asked.newest.get().tolist(), strict=True):
            if slot in wanted:
                changed[slot] = self._read(slot, length, newest, asked.wholes.get(slot))
        return changed

    def _read(self, slot: int, length: int, newest: list[int], whole: Later | None) -> bool:
        generation, prompt = self._generations[slot], int(self._states.prompt_len.np[slot])
        fresh = length - prompt - generation.length
        is_new = slot in self._unread
        if not is_new and 0 <= fresh <= len(newest):
            return generation.extend(newest[len(newest) - fresh :])
        tokens = None if whole is None else whole.get()
        if tokens is None or len(tokens) != length:  # a step was not seen, or tokens were taken back
            tokens = self._states.all_token_ids.gpu[slot, :length]
        text = tokens.tolist()
        generation.restart(text[:prompt])
        if is_new:
            generation.resume(text[prompt:])
        else:
            generation.extend(text[prompt:])
        self._unread.discard(slot)
        return True
