"""`LearnedPrompt`: where a prompt ends, for logits processors that are called with ids alone."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["LearnedPrompt"]

MAX_GENERATIONS = 1_024
MAX_IDS = 2**20  # of all prompts that are kept; the newest is always kept


class LearnedPrompt:
    """Learns where the prompt ends: the first call of a generation has the ids of the prompt and nothing else.

    Every way of decoding calls a processor at each length, also with drafts, which later calls may take back. So a call
    continues a generation if its ids begin with that prompt and are at most one longer than the longest so far. Any other
    call begins a new generation. The newest 1,024 generations are known, so that those of a batch may take turns; fewer of
    them if their prompts are long.
    """

    def __init__(self) -> None:
        self._known: list[list] = []  # prompt and longest length of each generation, the newest first

    def end(self, ids: Any) -> int:
        """Return where the prompt of `ids [..., length]` ends: NumPy arrays, or torch tensors of one device.

        On a GPU this waits for one comparison, and copies nothing to the host.
        """
        length = ids.shape[-1]
        for place, (prompt, longest) in enumerate(self._known):
            end = prompt.shape[-1]
            if end <= length <= longest + 1 and _equal(ids[..., :end], prompt):
                self._known.insert(0, self._known.pop(place))
                self._known[0][1] = max(longest, length)
                return end
        self._known = [[_copied(ids), length], *self._known[: MAX_GENERATIONS - 1]]
        kept = np.cumsum([np.prod(prompt.shape) for prompt, _ in self._known])
        del self._known[max(1, int(np.searchsorted(kept, MAX_IDS, side="right"))) :]
        return length


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    return one.shape == other.shape and bool((one == other).all())


def _copied(ids: Any) -> Any:
    return ids.copy() if isinstance(ids, np.ndarray) else ids.clone()
