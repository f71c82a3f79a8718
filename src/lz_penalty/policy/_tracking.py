"""`Tracker`: follow one generation token by token: its section, a forced token, and when it must end. Runs on the CPU."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lz_penalty._checks import integer
from lz_penalty.detection import Repetition, RepetitionDetector
from lz_penalty.detection._tandem import LOOP_COPIES, LOOP_LENGTH
from lz_penalty.errors import LZPenaltyError
from lz_penalty.policy._places import THINKING, Marked, Pair
from lz_penalty.policy._rules import RequestPolicy
from lz_penalty.policy._sections import Sections, State
from lz_penalty.policy._vocabulary import text_tokenizer

__all__ = ["MAX_REWIND", "Tracker", "closers_of"]

MAX_REWIND = 256  # tokens
MAX_CLOSER = 128  # tokens of a marker
LEAST_COPIES = 3  # of a run that is detected
RUNG_LENGTH = 16  # tokens of the shortest run that counts for the ladder
NEVER = float("inf")
WATCHED = 3  # `push` reports changes of the first three fields of a `Climb`


class Climb(NamedTuple):
    """The position of a generation on the ladder. It changes only in runs and after them.

    Attributes:
        marker: the end-of-thinking marker that is being written; empty if there is none.
        written: how many of its tokens are written.
        stopped, ended_thinking: the first run that caused this, or would have caused it in shadow mode.
        ends: how often thinking was ended.
        counted: period and start of the last runs that were counted as loops.
        loops, loop_tokens: see `Tracker`.
        covered: the length of the output up to the last token that was counted as part of a loop.
    """

    marker: tuple[int, ...] = ()
    written: int = 0
    stopped: Repetition | None = None
    ended_thinking: Repetition | None = None
    ends: int = 0
    counted: tuple[tuple[int, int], ...] = ()
    loops: int = 0
    loop_tokens: int = 0
    covered: int = 0


class Tracker:
    """The state of one generation with a policy.

        tracker = Tracker(asked, sections, closers_of(sections, tokenizer), prompt_ids)
        for token in generation:
            if tracker.push(token):                  # rarely true
                tracker.section, tracker.forced, tracker.stopped

    Runs are detected in the output only, and only with a ladder or in shadow mode. All attributes depend only on the
    tokens pushed. `rewind` removes up to 256 of them.

    Args:
        asked: the request's settings.
        sections: the model's sections; share them between requests.
        closers: see `closers_of`.
        prompt: the prompt's ids, which determine the section in which the output begins.
        stop_adds: 0, or 1 for an engine whose stop adds one more token of the run: `stopped` is then set one token early,
            unless thinking must be ended first or the run needs fewer than 4 copies.
    """

    def __init__(
        self,
        asked: RequestPolicy,
        sections: Sections,
        closers: Mapping[Pair, tuple[int, ...]],
        prompt: Sequence[int],
        stop_adds: int = 0,
    ) -> None:
        ladder = asked.ladder
        self._advance = sections.advance
        self._closers = closers
        self._shadow = asked.shadow
        self._state: State = sections.read(prompt)
        self._states: deque[State] = deque(maxlen=MAX_REWIND)  # the state before each of the last tokens
        self._end = ladder.end_thinking_copies or NEVER
        self._stop = ladder.stop_copies or NEVER
        self._stop_adds = stop_adds
        self._detector: RepetitionDetector | None = None
        if asked.looks_for_runs:
            self._detector = RepetitionDetector(
                min_copies=max(LEAST_COPIES, min(LOOP_COPIES, self._end, self._stop - stop_adds)),
                min_length=RUNG_LENGTH - stop_adds if ladder else LOOP_LENGTH,
                max_rewind=MAX_REWIND,
            )
        self._climb = Climb()
        self._climbs: deque[tuple[int, Climb]] = deque(maxlen=MAX_REWIND)  # (length at a change, `Climb` before it)

    @property
    def section(self) -> int:
        """The section of the next token, as an index of `SECTIONS`."""
        return self._state.number

    @property
    def forced(self) -> int | None:
        """The token that must come next in an end-of-thinking marker, or `None`."""
        return self.closing[0] if self.closing else None

    @property
    def closing(self) -> tuple[int, ...]:
        """All tokens that must come next, to the end of the marker; for engines that need them in advance."""
        return () if self._shadow else self._climb.marker[self._climb.written :]

    @property
    def stopped(self) -> Repetition | None:
        """The run because of which the generation must end now; its `start` counts from the end of the prompt."""
        return None if self._shadow else self._climb.stopped

    @property
    def ended_thinking(self) -> Repetition | None:
        """The first run because of which thinking was ended."""
        return None if self._shadow else self._climb.ended_thinking

    @property
    def loops(self) -> int:
        """The number of runs of at least 5 copies and 60 tokens, as in `lz_penalty.detection.is_loop`."""
        return self._climb.loops

    @property
    def loop_tokens(self) -> int:
        """The number of output tokens in such runs."""
        return self._climb.loop_tokens

    @property
    def rewindable(self) -> int:
        """The number of tokens that `rewind` can remove."""
        return len(self._states)

    def copy(self) -> Tracker:
        """Return an independent copy, for a beam that splits or a request that is forked."""
        twin = copy.copy(self)
        twin._states, twin._climbs = self._states.copy(), self._climbs.copy()
        twin._detector = copy.deepcopy(self._detector)
        return twin

    def __deepcopy__(self, memo: Any) -> Tracker:
        return self.copy()  # sections are shared

    def totals(self) -> dict[str, int]:
        """Return the amounts that this request adds to the counters (see `counters`)."""
        climb = self._climb
        return {
            "lz_loops_seen": climb.loops,
            "lz_loops_left": climb.loops - self._loops_now(),
            "lz_loop_tokens": climb.loop_tokens,
            "lz_thinking_ended": climb.ends,
            "lz_stopped": int(climb.stopped is not None),
        }

    def push(self, token: int) -> bool:
        """Append one token of the output and return whether `section`, `forced` or `stopped` changed."""
        before = self._state
        self._states.append(before)
        self._state = state = self._advance(before, token)
        changed = state.number != before.number
        detector = self._detector
        if detector is not None and (detector.take(token) or self._climb.marker):
            return self._follow(token, detector) or changed
        return changed

    def rewind(self, count: int) -> None:
        """Remove the last `count` tokens; at most `rewindable`."""
        integer(0, len(self._states))("count", count)
        for _ in range(count):
            self._state = self._states.pop()
        if self._detector is not None:
            self._detector.rewind(count)
            while self._climbs and self._climbs[-1][0] > self._detector.length:
                self._climb = self._climbs.pop()[1]

    def _loops_now(self) -> int:
        """Return how many of the loops go on to the newest token."""
        stretches = () if self._detector is None else self._detector.stretches
        return sum(stretch in self._climb.counted for stretch in stretches)

    # ------------------------------------------------------------ in a run, or while a marker is written

    def _follow(self, token: int, detector: RepetitionDetector) -> bool:
        before = self._climb
        climb = _write(before, token) if before.marker else before
        closer = self._closer() if climb.marker or self._end < NEVER else ()
        if climb.marker and not closer:  # the marker is complete, or thinking ended in another way
            climb = climb._replace(marker=(), written=0)
        length = detector.length
        for period, start in detector.stretches:
            run = length - start
            may_end = closer and not climb.marker
            due = run if may_end else run + self._stop_adds
            if due < RUNG_LENGTH:
                continue
            if run >= LOOP_LENGTH and run / period >= LOOP_COPIES:
                climb = _count(climb, period, start, length)
            if may_end and run / period >= self._end:
                first = climb.ended_thinking or detector.run(period, start)
                climb = climb._replace(marker=closer, written=0, ended_thinking=first, ends=climb.ends + 1)
            elif due / period >= self._stop and not climb.stopped and not climb.written:
                # Not while a marker is written, which may begin like the run.
                climb = climb._replace(stopped=detector.run(period, start))
        if climb is before:
            return False
        self._climbs.append((length, before))
        self._climb = climb
        if self._shadow:
            return False
        return climb[:WATCHED] != before[:WATCHED]

    def _closer(self) -> tuple[int, ...]:
        """Return the marker that ends the current thinking; empty if there is no thinking or no such marker."""
        place = self._state.place
        return self._closers.get(place.pair, ()) if isinstance(place, Marked) else ()


def _write(climb: Climb, token: int) -> Climb:
    """Count the written tokens of a marker; a token that is not its next one restarts the marker."""
    written = climb.written
    if written < len(climb.marker) and token == climb.marker[written]:
        written += 1
    else:
        written = int(token == climb.marker[0])
    return climb if written == climb.written else climb._replace(written=written)


def _count(climb: Climb, period: int, start: int, length: int) -> Climb:
    """Count a run that ends at `length`, and those of its tokens that were not counted yet."""
    fresh = length - (start if start > climb.covered else climb.covered)
    if (period, start) not in climb.counted:
        climb = climb._replace(loops=climb.loops + 1, counted=(*climb.counted[-15:], (period, start)))
    return Climb._make((*climb[:-2], climb.loop_tokens + fresh, length))  # faster than _replace: runs for every token


def closers_of(sections: Sections, tokenizer: Any) -> dict[Pair, tuple[int, ...]]:
    """Return the token ids of the markers that end thinking, by their pair. The tokenizer is that of `Sections.of`."""
    inner = text_tokenizer(tokenizer)
    closers = {}
    for pair in sections.pairs:
        if pair.section == THINKING and pair.close is not None:
            ids = tuple(map(int, inner(pair.close, add_special_tokens=False).input_ids))
            if not 0 < len(ids) <= MAX_CLOSER:
                raise LZPenaltyError(
                    f"marker {pair.close!r}: the tokenizer encodes it as {len(ids)} tokens; must be 1 to {MAX_CLOSER}."
                )
            closers[pair] = ids
    return closers
