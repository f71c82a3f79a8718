"""`Generation`: one running sequence with a policy, followed on the host. It imports no engine.

A request without a policy has no `Generation`, and its steps never come here. The exception is a server that counts loops:
there a `Generation` with `LOOPS_ONLY` reads the output of every penalised request (`vllm/_counting.py`,
`sglang/_following.py`).
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from lz_penalty.detection import Repetition
from lz_penalty.policy import Pair, Policy, RequestPolicy, Sections, Tracker, closers_of, counters
from lz_penalty.policy._tracking import MAX_REWIND

__all__ = ["LOOPS_ONLY", "NO_SECTIONS", "Generation", "Reading", "count_loops", "reading_of"]


class Reading(NamedTuple):
    """How the texts of one model are read. All its generations share it.

    Attributes:
        sections: finds the section of every token.
        closers: ids of the markers that end thinking; see `closers_of`.
    """

    sections: Sections
    closers: Mapping[Pair, tuple[int, ...]]


NO_SECTIONS = Reading(Sections([], []), {})
LOOPS_ONLY = RequestPolicy(policy=Policy.everywhere(None), shadow=True)  # penalises nothing, and counts loops
_known: WeakKeyDictionary[Any, Reading] = WeakKeyDictionary()


def reading_of(tokenizer: Any) -> Reading:
    """Return how texts of this tokenizer's model are read. The tokenizer is read once.

    Raises:
        Exception: the tokenizer cannot be read. Its class may be anybody's, so the error may be any.
    """
    with suppress(TypeError):  # not every tokenizer can be a key
        if tokenizer in _known:
            return _known[tokenizer]
    sections = Sections.of(tokenizer)
    reading = Reading(sections, closers_of(sections, tokenizer))
    with suppress(TypeError):
        _known[tokenizer] = reading
    return reading


def count_loops(output: Sequence[int]) -> None:
    """Add the loops of a finished output to the counters."""
    generation = Generation(NO_SECTIONS, LOOPS_ONLY, ())
    generation.extend(output)
    generation.count()


class Ending(Protocol):
    """How an engine ends a sequence by forcing tokens. `lz_penalty.engines.vllm._ending.Ending` is the only one.

    Attributes:
        stop_adds: how many tokens of the run the end writes, 0 or 1; see `Tracker`.
    """

    stop_adds: int

    @property
    def overrides_masks(self) -> bool:
        """Whether the forced token must come even if it is masked."""

    def token(self, run: Repetition, length: int) -> int | None:
        """Return the token that must come after `length` tokens of the output; `None` if nothing can end the sequence."""

    def wait(self, run: Repetition, length: int) -> None:
        """Note that a sequence that must end now has `length` tokens."""

    def begin(self, run: Repetition, generation: Generation) -> None:
        """Note that the sequence must end from now on. `generation.forced` is the first token of the end."""


class Generation:
    """One running sequence with a policy: its section, the token that must come next, when it ends, and what it counts.

    Args:
        reading: of the model.
        asked: the policy, ladder and shadow mode of the request.
        prompt: its token ids.
        settings_rows: int32 `[5, 14]`, the settings row of each section, for engines that pack them.
        ending: forces the tokens that end the sequence; `None` if the engine ends it when `stopped` is set.

    Attributes:
        asked, prompt, settings_rows: as given.
        shadow: whether the penalty only counts and changes nothing.
        length: how many tokens of the output were read.
        forced: the token that must come next, `None` for any.
        stopped: the run for which the sequence must end, `None` if it may go on.
    """

    def __init__(
        self,
        reading: Reading,
        asked: RequestPolicy,
        prompt: Sequence[int],
        *,
        settings_rows: np.ndarray | None = None,
        ending: Ending | None = None,
    ) -> None:
        self.asked = asked
        self.shadow = asked.shadow
        self.settings_rows = settings_rows
        self._reading = reading
        self._ending = ending
        self._stop_adds = 0 if ending is None or asked.shadow else ending.stop_adds
        self._resumed = False  # whether `resume` was called, or `read`, which calls it first
        self.restart(prompt)
        self._counted = self._tracker.totals()

    def restart(self, prompt: Sequence[int]) -> None:
        """Forget the output; the sequence begins again after this prompt."""
        self.prompt = prompt
        self.length = 0
        self.forced: int | None = None
        self.stopped: Repetition | None = None
        self._tracker = Tracker(self.asked, *self._reading, prompt, self._stop_adds)
        self._noted: tuple[Any, int] | None = None  # of the token to come
        self._steps = self._changed = 0
        self._tally: deque[tuple[int, int]] = deque(maxlen=MAX_REWIND)  # what each of the last tokens added to them

    # ------------------------------------------------------------ reading the output

    def push(self, token: int) -> bool:
        """Read one token; return whether `section`, `forced` or `stopped` may have changed."""
        self.length += 1
        if self.shadow:
            self._count_noted()
        changed = self._tracker.push(token)
        if changed or self.stopped is not None:
            self._decide()
        return changed

    def extend(self, tokens: Sequence[int]) -> bool:
        """Read several tokens or none; return whether `section`, `forced` or `stopped` may have changed."""
        changed = False
        for token in tokens:
            changed |= self.push(token)
        return changed

    def resume(self, output: Sequence[int]) -> None:
        """Read the output that a preempted sequence comes back with. It was counted before the preemption."""
        self.extend(output)
        self._counted = self.totals()
        self._resumed = True

    def read(self, output: Sequence[int]) -> bool:
        """Read what a live list of the output has gained; return whether `section`, `forced` or `stopped` may have changed.

        Output that is there at the first call was counted before. A list that has become shorter is read again.
        """
        fresh = len(output) - self.length
        if fresh == 1 and self._resumed:
            return self.push(output[-1])
        if not self._resumed:
            self.resume(output)
            return True
        if fresh < 0:
            self.restart(self.prompt)
        return self.extend(output[self.length :]) or fresh < 0

    # ------------------------------------------------------------ the token to come

    @property
    def section(self) -> int:
        """The section of the token to come: its number in `lz_penalty.policy.SECTIONS`."""
        return self._tracker.section

    @property
    def settings_row(self) -> np.ndarray:
        """The settings row of the token to come."""
        assert self.settings_rows is not None
        return self.settings_rows[self._tracker.section]

    @property
    def ended_thinking(self) -> Repetition | None:
        """The first run for which thinking was ended."""
        return self._tracker.ended_thinking

    @property
    def overrides_masks(self) -> bool:
        """Whether the forced token must come even if it is masked."""
        return self.stopped is not None and self._ending is not None and self._ending.overrides_masks

    def _next(self) -> int | None:
        """Return the token that must come next, `None` for any."""
        run = self._tracker.stopped
        if run is None or self._ending is None:
            return self._tracker.forced
        return self._ending.token(run, self.length)

    def _decide(self) -> None:
        """Set `forced` and `stopped`; if the sequence must end, tell the engine's `Ending`."""
        before, run = self.stopped, self._tracker.stopped
        if run is not None and self._ending is not None:
            self._ending.wait(run, self.length)
        self.forced, self.stopped = self._next(), run
        if before is None and run is not None and self._ending is not None:
            self._ending.begin(run, self)

    # ------------------------------------------------------------ drafts and beams

    def after_drafts(self, drafts: Sequence[int]) -> list[tuple[np.ndarray, int | None]]:
        """Return `settings_row` and `forced` now and after each of these tokens. None of the tokens is kept."""
        found = [(self.settings_row, self._next())]
        for token in drafts:
            self.length += 1
            self._tracker.push(token)
            found.append((self.settings_row, self._next()))
        self.length -= len(drafts)
        self._tracker.rewind(len(drafts))
        return found

    @property
    def rewindable(self) -> int:
        """How many tokens can be taken back."""
        return self._tracker.rewindable

    def rewind(self, count: int) -> None:
        """Take the last `count` tokens back."""
        self._tracker.rewind(count)
        self.length -= count
        self._noted = None
        for _ in range(min(count, len(self._tally))):
            step, changed = self._tally.pop()
            self._steps, self._changed = self._steps - step, self._changed - changed
        self.forced, self.stopped = self._next(), self._tracker.stopped

    def copy(self) -> Generation:
        """Return another generation that goes on from here: a beam that splits, a request that is forked."""
        twin = copy.copy(self)
        twin._tracker, twin._tally = self._tracker.copy(), self._tally.copy()
        return twin

    def __deepcopy__(self, memo: Any) -> Generation:
        return self.copy()  # all generations share the reading

    # ------------------------------------------------------------ what is counted

    def note(self, flags: Any, index: int) -> None:
        """Note a step in shadow mode: `flags[index]`, of a `Later`, tells whether the penalty would have changed its token.

        The step is counted when its token is read, or at the end of the sequence. If its token is thrown away, as in a
        prefill in chunks, the next step replaces it.
        """
        self._noted = flags, index

    def _count_noted(self) -> None:
        step = changed = 0
        if self._noted is not None:
            flags, index = self._noted
            step, changed, self._noted = 1, int(flags[index]), None
        self._tally.append((step, changed))
        self._steps, self._changed = self._steps + step, self._changed + changed

    @property
    def is_complete(self) -> bool:
        """Whether `totals` would not wait for the device."""
        return self._noted is None or self._noted[0].is_there

    def totals(self) -> dict[str, int]:
        """Return what this sequence adds to the counters; see `lz_penalty.policy.counters`."""
        found = self._tracker.totals()
        if self.shadow:
            step, changed = (0, 0) if self._noted is None else (1, int(self._noted[0][self._noted[1]]))
            found |= {"lz_shadow_steps": self._steps + step, "lz_shadow_changed": self._changed + changed}
        return found

    def count(self) -> dict[str, int]:
        """Add what has happened since the last call to the counters of this process, and return it."""
        totals = self.totals()
        amounts = {name: number - self._counted.get(name, 0) for name, number in totals.items()}
        self._counted = totals
        counters.add(amounts)
        return amounts
