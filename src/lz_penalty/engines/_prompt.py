"""`LearnedPrompt`: where a prompt ends, for logits processors that are called with ids alone."""

from __future__ import annotations

import numpy as np

__all__ = ["LearnedPrompt"]

MAX_GENERATIONS = 1_024


class LearnedPrompt:
    """Learns where the prompt ends: the first call of a generation has the ids of the prompt and nothing else.

    Every way of decoding calls a processor at each length, also with drafts, which later calls may take back. So a call
    continues a generation if its ids begin with that prompt and are at most one longer than the longest so far. Any other
    call begins a new generation. The newest 1,024 generations are known, so that those of a batch may take turns.
    """

    def __init__(self) -> None:
        self._known: list[list] = []  # prompt and longest length of each generation, the newest first

    def end(self, ids: np.ndarray) -> int:
        """Return where the prompt of `ids [..., length]` ends."""
        length = ids.shape[-1]
        for place, (prompt, longest) in enumerate(self._known):
            end = prompt.shape[-1]
            if end <= length <= longest + 1 and np.array_equal(ids[..., :end], prompt):
                self._known.insert(0, self._known.pop(place))
                self._known[0][1] = max(longest, length)
                return end
        self._known = [[ids.copy(), length], *self._known[: MAX_GENERATIONS - 1]]
        return length
