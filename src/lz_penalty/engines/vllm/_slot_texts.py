"""The newest tokens of the V2 runner's requests on the host, where only the device knows them.

They are asked for before a step's forward pass is queued and waited for behind it: the copy waits for the step before
alone, so the device has work meanwhile.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from lz_penalty.engines._requests import fetch, send
from lz_penalty.engines.vllm._following import Followed

__all__ = ["SlotTexts"]


class Sent(NamedTuple):
    """What is on its way to the host.

    Attributes:
        lengths_and_newest: int32 `[slots, 1 + newest]`, of every followed slot its length and last tokens.
        wholes: slots whose text is not known yet, with all of it.
        done: tells when it has come; `None` on a CPU.
    """

    lengths_and_newest: torch.Tensor
    wholes: dict[int, torch.Tensor]
    done: Any


class SlotTexts:
    """Lets every followed request read the tokens that it has gained.

    Args:
        states: vLLM's request states, read only.
        drafts: the most draft tokens that a request can have in a step.
        followed: the requests, by slot; kept by the caller, who calls `took` when one of them or of others takes a slot.
    """

    def __init__(self, states: Any, drafts: int, followed: dict[int, Followed]) -> None:
        self._states = states
        self._newest = 1 + drafts
        self._followed = followed
        self._unread: set[int] = set()
        self._slots: torch.Tensor | None = None
        self._sent: Sent | None = None

    def took(self, slot: int) -> None:
        """Another request has taken this slot."""
        self._unread.discard(slot)
        if slot in self._followed:
            self._unread.add(slot)
        self._slots = self._sent = None

    def forget(self) -> None:
        """What was asked for is not needed, and will be old."""
        self._sent = None

    def ask(self) -> Sent:
        """Ask for the texts, before the forward pass."""
        states = self._states
        if self._slots is None:
            self._slots = send(np.array(list(self._followed), dtype=np.int64), states.device)
        lengths = states.total_len.gpu.index_select(0, self._slots)
        place = lengths[:, None] - self._newest + torch.arange(self._newest, device=states.device)
        tokens = states.all_token_ids.gpu[self._slots[:, None], place.clamp_(min=0)]
        wholes = {slot: self._whole(slot) for slot in self._unread}
        sent, done = fetch(torch.cat([lengths[:, None], tokens], dim=1))  # the last copy: its event is that of all
        self._sent = Sent(sent, wholes, done)
        return self._sent

    def _whole(self, slot: int) -> torch.Tensor:
        """A copy of all that a request came with."""
        length = int(self._states.prefill_len.np[slot])
        return fetch(self._states.all_token_ids.gpu[slot, :length])[0]

    def read(self, slots: list[int]) -> dict[int, bool]:
        """Let those of the requests in these slots that have a policy read on; whether each one's settings may change."""
        sent, wanted = self._sent or self.ask(), self._followed.keys() & set(slots)
        if sent.done is not None:
            sent.done.synchronize()
        changed = {}
        for slot, (length, *newest) in zip(self._followed, sent.lengths_and_newest.tolist(), strict=True):
            if slot in wanted:
                changed[slot] = self._read(slot, length, newest, sent.wholes.get(slot))
        self._sent = None
        return changed

    def _read(self, slot: int, length: int, newest: list[int], whole: torch.Tensor | None) -> bool:
        followed, prompt = self._followed[slot], int(self._states.prompt_len.np[slot])
        fresh = length - prompt - followed.taken
        if slot not in self._unread and 0 <= fresh <= len(newest):
            return followed.extend(newest[len(newest) - fresh :])
        if whole is None or len(whole) != length:  # a step was not seen, or tokens were taken back
            whole = self._states.all_token_ids.gpu[slot, :length]
        text = whole.tolist()
        followed.restart(text[:prompt])
        followed.extend(text[prompt:])
        self._unread.discard(slot)
        return True
