"""`Tracker`: where one generation is, what must come next, and when it must end. On the host, token by token."""

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
LEAST_COPIES = 3  # that are looked for
RUNG_LENGTH = 16  # tokens from which a run counts for the ladder
NEVER = float("inf")
WATCHED = 3  # the first fields of a `Climb`: what `push` announces


class Climb(NamedTuple):
    """How far up the ladder a generation is; changes only in and behind runs.

    Attributes:
        marker: the end-of-thinking marker under way, empty if there is none.
        written: how many tokens of it stand at the end.
        stopped, ended_thinking: the first run for which that happened, or would have in shadow mode.
        ends: how often thinking was ended.
        counted: period and start of the last runs that were counted as loops.
        loops, loop_tokens: see `Tracker`.
        covered: where the last token counted as one of a loop stands.
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
    """Follows one generation.

        tracker = Tracker(asked, sections, closers_of(sections, tokenizer), prompt_ids)
        for token in generation:
            if tracker.push(token):                  # rarely true
                tracker.section, tracker.forced, tracker.stopped

    Runs of copies are looked for in the output only, and only where a ladder or shadow mode is asked for. All attributes
    are a function of the tokens pushed: `rewind` takes up to 256 of them back.

    Args:
        asked: by the request.
        sections: of the model; share them between requests.
        closers: see `closers_of`.
        prompt: its ids, for the section in which the output begins.
        early: `stopped` names a run that lacks so many tokens, for engines that end it by writing them; 0 or 1. One that
            has thinking to end first, or needs less than 4 copies, is named when it is complete.
    """

    def __init__(
        self,
        asked: RequestPolicy,
        sections: Sections,
        closers: Mapping[Pair, tuple[int, ...]],
        prompt: Sequence[int],
        early: int = 0,
    ) -> None:
        ladder = asked.ladder
        self._advance = sections.advance
        self._closers = closers
        self._shadow = asked.shadow
        self._state: State = sections.read(prompt)
        self._states: deque[State] = deque(maxlen=MAX_REWIND)  # before each of the last tokens
        self._end = ladder.end_thinking_copies or NEVER
        self._stop = ladder.stop_copies or NEVER
        self._early = early
        self._detector: RepetitionDetector | None = None
        if asked.looks_for_runs:
            self._detector = RepetitionDetector(
                min_copies=max(LEAST_COPIES, min(LOOP_COPIES, self._end, self._stop - early)),
                min_length=RUNG_LENGTH - early if ladder else LOOP_LENGTH,
                max_rewind=MAX_REWIND,
            )
        self._climb = Climb()
        self._climbs: deque[tuple[int, Climb]] = deque(maxlen=MAX_REWIND)  # (length with the token, the one before it)

    @property
    def section(self) -> int:
        """The number in `SECTIONS` of the token to come."""
        return self._state.number

    @property
    def forced(self) -> int | None:
        """The token that must come next: an end-of-thinking marker is under way."""
        return self.closing[0] if self.closing else None

    @property
    def closing(self) -> tuple[int, ...]:
        """The tokens that must come next, to the end of the marker; for engines that must say so ahead."""
        return () if self._shadow else self._climb.marker[self._climb.written :]

    @property
    def stopped(self) -> Repetition | None:
        """The run for which the generation must end now; `start` counts from the end of the prompt."""
        return None if self._shadow else self._climb.stopped

    @property
    def ended_thinking(self) -> Repetition | None:
        """The first run for which thinking was ended."""
        return None if self._shadow else self._climb.ended_thinking

    @property
    def loops(self) -> int:
        """How many runs of 5 copies and 60 tokens or more were seen, as in `lz_penalty.detection.is_loop`."""
        return self._climb.loops

    @property
    def loop_tokens(self) -> int:
        """How many tokens of the output stand in one."""
        return self._climb.loop_tokens

    @property
    def rewindable(self) -> int:
        """How many tokens can be taken back."""
        return len(self._states)

    def copy(self) -> Tracker:
        """Another one that goes on from here: a beam that splits, a request that is forked."""
        twin = copy.copy(self)
        twin._states, twin._climbs = self._states.copy(), self._climbs.copy()
        twin._detector = copy.deepcopy(self._detector)
        return twin

    def __deepcopy__(self, memo: Any) -> Tracker:
        return self.copy()  # sections are shared

    def totals(self) -> dict[str, int]:
        """What this request adds to the counters (see `counters`); in shadow mode, what the ladder would have done."""
        climb = self._climb
        return {
            "lz_loops_seen": climb.loops,
            "lz_loops_left": climb.loops - self._loops_now(),
            "lz_loop_tokens": climb.loop_tokens,
            "lz_thinking_ended": climb.ends,
            "lz_stopped": int(climb.stopped is not None),
        }

    def push(self, token: int) -> bool:
        """Read one token of the output; whether `section`, `forced` or `stopped` is another now."""
        before = self._state
        self._states.append(before)
        self._state = state = self._advance(before, token)
        changed = state.number != before.number
        detector = self._detector
        if detector is not None and (detector.take(token) or self._climb.marker):
            return self._follow(token, detector) or changed
        return changed

    def rewind(self, count: int) -> None:
        """Take the last `count` tokens back; at most 256, or as many as there are."""
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
        if climb.marker and not closer:  # the marker is complete, or thinking ended otherwise
            climb = climb._replace(marker=(), written=0)
        length = detector.length
        for period, start in detector.stretches:
            run = length - start
            may_end = closer and not climb.marker
            due = run if may_end else run + self._early
            if due < RUNG_LENGTH:
                continue
            if run >= LOOP_LENGTH and run / period >= LOOP_COPIES:
                climb = _count(climb, period, start, length)
            if may_end and run / period >= self._end:
                first = climb.ended_thinking or detector.run(period, start)
                climb = climb._replace(marker=closer, written=0, ended_thinking=first, ends=climb.ends + 1)
            elif (
                due / period >= self._stop and not climb.stopped and not climb.written
            ):  # a marker may begin like the loop
                climb = climb._replace(stopped=detector.run(period, start))
        if climb is before:
            return False
        self._climbs.append((length, before))
        self._climb = climb
        if self._shadow:
            return False
        return climb[:WATCHED] != before[:WATCHED]

    def _closer(self) -> tuple[int, ...]:
        """The marker that ends the thinking of now; empty where it is not thinking, or only a turn's end does."""
        place = self._state.place
        return self._closers.get(place.pair, ()) if isinstance(place, Marked) else ()


def _write(climb: Climb, token: int) -> Climb:
    """A token while a marker is under way; one that is not its next begins it anew."""
    written = climb.written
    if written < len(climb.marker) and token == climb.marker[written]:
        written += 1
    else:
        written = int(token == climb.marker[0])
    return climb if written == climb.written else climb._replace(written=written)


def _count(climb: Climb, period: int, start: int, length: int) -> Climb:
    """Count a run that ends at `length`, and the tokens of it that no other loop had."""
    fresh = length - (start if start > climb.covered else climb.covered)
    if (period, start) not in climb.counted:
        climb = climb._replace(loops=climb.loops + 1, counted=(*climb.counted[-15:], (period, start)))
    return Climb._make((*climb[:-2], climb.loop_tokens + fresh, length))  # in a loop, with every token


def closers_of(sections: Sections, tokenizer: Any) -> dict[Pair, tuple[int, ...]]:
    """The ids of the markers that end thinking, by their pair.

    Args:
        sections: whose markers.
        tokenizer: a Hugging Face tokenizer, or a processor that has one.
    """
    inner = text_tokenizer(tokenizer)
    closers = {}
    for pair in sections.pairs:
        if pair.section == THINKING and pair.close is not None:
            ids = tuple(map(int, inner(pair.close, add_special_tokens=False).input_ids))
            if not 0 < len(ids) <= MAX_CLOSER:
                raise LZPenaltyError(
                    f"marker {pair.close!r}: the tokenizer writes it with {len(ids)} tokens, must be 1 to {MAX_CLOSER}."
                )
            closers[pair] = ids
    return closers
