"""Find tandem repeats token by token, with time and memory that do not depend on the number of tokens. Plain Python.

A run of period p counts if it has need[p] items. Periods are searched in scales [first, last]. Every `step` tokens a
scale is searched: if the last `last` tokens occurred before, at the smallest distance p <= last, then the history ends
with a stretch of period p. Conversely, every run of primitive period p is found this way: a smaller distance d < p would
make d and p periods of last + d >= p + d items, and their greatest common divisor too (Fine and Wilf). The steps are
short enough that every run is found before it counts. After that, a run needs one comparison per token.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from heapq import heapreplace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lz_penalty._checks import boolean, integer, real
from lz_penalty.detection._structure import StructuralRun, StructureDetector
from lz_penalty.detection._tandem import (
    DEGENERATE_COPIES,
    LOOP_COPIES,
    LOOP_LENGTH,
    STOP_LENGTH,
    Items,
    Repetition,
    as_array,
    make_repetition,
)
from lz_penalty.errors import LZPenaltyError, bad_value
from lz_penalty.loops import trailing_runs

__all__ = ["RepetitionDetector", "Thresholds", "repetition_at_end", "stop_on_repetition"]

MAX_PERIOD = 1024
MAX_REWIND = 256
MAX_HISTORY = 2**20  # tokens, 8 bytes each
NEEDLE = 64  # tokens of a quick search that comes before the full one


class Scale(NamedTuple):
    """The periods from first to last, which are searched every `step` tokens."""

    first: int
    last: int
    step: int


class Thresholds(NamedTuple):
    """The least number of items in a run that counts, by period.

    Args:
        need: the least number of items, by period; need[0] is not used.
        reach: the largest value in `need`.
        overlap: the smallest need[p] - p: so many items at the end occurred before.
        scales: see the module.
    """

    need: tuple[int, ...]
    reach: int
    overlap: int
    scales: tuple[Scale, ...]

    @classmethod
    def of(cls, max_period: int, min_copies: float, min_length: int) -> Thresholds:
        """Check the settings and compute the thresholds."""
        max_period = integer(1, 65_536)("max_period", max_period)
        min_copies = real(3, 10_000)("min_copies", min_copies)
        min_length = integer(1, MAX_HISTORY)("min_length", min_length)
        if max_period * min_copies > MAX_HISTORY:
            raise LZPenaltyError(
                f"max_period = {max_period} times min_copies = {min_copies:g}: must be at most {MAX_HISTORY}, the number "
                "of tokens that are stored; use a smaller max_period."
            )
        return _thresholds(max_period, min_copies, min_length)


@lru_cache(maxsize=64)
def _thresholds(max_period: int, min_copies: float, min_length: int) -> Thresholds:
    need = [0]
    for period in range(1, max_period + 1):
        least = int(min_copies * period) - 1
        while least / period < min_copies:
            least += 1
        need.append(max(least, min_length))
    scales = []
    first = 1
    while first <= max_period:
        last, step = first, need[first] - 2 * first + 1
        overlap = need[first] - first
        while last < max_period:
            overlap = min(overlap, need[last + 1] - last - 1)
            if overlap - last < last / 2:
                break
            last, step = last + 1, overlap - last
        scales.append(Scale(first, last, step))
        first = last + 1
    return Thresholds(tuple(need), max(need), min(n - p for p, n in enumerate(need) if p), tuple(scales))


class RepetitionDetector:
    """Read one token at a time and report when a run of adjacent copies reaches the threshold.

    A run is defined as in `find_repetition`, with a period of at most `max_period`. A push takes about a microsecond on
    average, independent of the number of tokens (benchmarks/detection.py). If the end of the history occurred before,
    about one push in a hundred takes time proportional to `max_period`. The result depends on the current tokens only:
    tokens removed with `rewind` have no effect.

    Args:
        max_period: length of the longest unit.
        min_copies: a real number, at least 3; an incomplete last copy counts as a fraction.
        min_length: the least number of items in the run.
        max_rewind: how many tokens `rewind` can remove.

    >>> detector = RepetitionDetector(min_copies=3, min_length=6)
    >>> [detector.push(token) for token in [5, 1, 2, 1, 2, 1]]
    [None, None, None, None, None, None]
    >>> detector.push(2)
    Repetition(start=1, period=2, length=6, copies=3.0, coverage=0.857..., unit=(1, 2))
    >>> detector.push(1), detector.current.length
    (None, 7)
    >>> detector.rewind(2)
    >>> detector.current, detector.push(2).unit
    (None, (1, 2))
    """

    def __init__(
        self,
        *,
        max_period: int = MAX_PERIOD,
        min_copies: float = LOOP_COPIES,
        min_length: int = LOOP_LENGTH,
        max_rewind: int = MAX_REWIND,
    ) -> None:
        self._thresholds = Thresholds.of(max_period, min_copies, min_length)
        self.max_rewind = integer(0, MAX_HISTORY)("max_rewind", max_rewind)
        self._kept = self._thresholds.reach + self.max_rewind
        self._history = array("q")  # at least the last `_kept` tokens
        self._length = 0  # of all tokens
        self._floor = 0  # the shortest length that `rewind` may return to
        self._due: list[tuple[int, int]] = []  # a heap of (length at which it is searched next, scale)
        self._active: tuple[tuple[int, int], ...] = ()  # (period, start) of stretches that reach the end
        self._changes: deque[tuple[int, tuple[tuple[int, int], ...]]] = deque()  # (length, `_active` before it)
        self._set_due()

    @property
    def length(self) -> int:
        """The number of tokens in the history."""
        return self._length

    @property
    def current(self) -> Repetition | None:
        """The longest run at or over the threshold at the end of the history, or `None`."""
        return self._longest(lambda length, need: length >= need)

    @property
    def stretches(self) -> tuple[tuple[int, int], ...]:
        """Period and start of each tracked stretch: all runs over the threshold, and some that may reach it.

        Every stretch ends with the newest token.
        """
        return self._active

    def run(self, period: int, start: int) -> Repetition:
        """Return one of the `stretches` as a `Repetition`."""
        length = self._length - start
        last = tuple(self._history[-period:])  # the history may contain only the end of a long run
        turn = period - length % period
        return Repetition(
            start=start,
            period=period,
            length=length,
            copies=length / period,
            coverage=length / self._length,
            unit=last[turn:] + last[:turn],
        )

    def push(self, token: int) -> Repetition | None:
        """Append one token and return the longest run that reaches the threshold with it, or `None`."""
        return self._longest(int.__eq__) if self.take(token) else None

    def take(self, token: int) -> bool:
        """Append one token and return whether there are any `stretches`."""
        try:
            self._history.append(token)
        except (TypeError, OverflowError):
            raise bad_value("token", token, "an integer of at most 64 bits") from None
        self._length += 1
        if self._active:
            self._follow()
        if self._length == self._due[0][0]:
            self._search_scales()
        return bool(self._active)

    def extend(self, tokens: Iterable[int]) -> Repetition | None:
        """Append all tokens and return the first run that reached the threshold, or `None`."""
        first = None
        for token in tokens:
            found = self.push(token)
            first = first or found
        return first

    def rewind(self, count: int) -> None:
        """Remove the last `count` tokens; at most `max_rewind` below the longest history so far."""
        floor = max(self._floor, self._length - self.max_rewind)
        count = integer(0, self._length - floor)("count", count)
        if not count:
            return
        self._floor = floor
        self._length -= count
        del self._history[-count:]
        while self._changes and self._changes[-1][0] > self._length:
            self._active = self._changes.pop()[1]
        self._set_due()

    def _set_due(self) -> None:
        length = self._length
        self._due = sorted(
            (length + scale.step - length % scale.step, i) for i, scale in enumerate(self._thresholds.scales)
        )

    def _set_active(self, active: tuple[tuple[int, int], ...]) -> None:
        while self._changes and self._changes[0][0] <= self._length - self.max_rewind:
            self._changes.popleft()
        self._changes.append((self._length, self._active))
        self._active = active

    def _follow(self) -> None:
        """Drop the stretches that the newest token ends."""
        history = self._history
        newest = history[-1]
        for period, _ in self._active:
            if history[-1 - period] != newest:
                self._set_active(tuple(run for run in self._active if history[-1 - run[0]] == newest))
                return

    def _search_scales(self) -> None:
        due, history, scales = self._due, self._history, self._thresholds.scales
        while due[0][0] == self._length:
            length, i = due[0]
            scale = scales[i]
            heapreplace(due, (length + scale.step, i))
            if scale.last > NEEDLE or history[-1] in history[-1 - scale.last : -1]:  # `_recurs` checks larger scales
                self._search(scale)
        if len(self._history) > 2 * self._kept:
            del self._history[: -self._kept]

    def _search(self, scale: Scale) -> None:
        """Track the stretch at the end of the history that has a period of this scale, if there is one."""
        last = scale.last
        for period, start in self._active:
            if period <= last and self._length - start >= period + last:
                return  # a second period would be a multiple of this one
        if not _recurs(self._history, last):
            return
        runs = trailing_runs(self._history[-2 * last :])
        period = next((p for p in range(1, min(last + 1, len(runs))) if runs[p] >= last), 0)
        if period < scale.first:
            return
        length = period + runs[period]
        while length < len(self._history) and self._history[-1 - length] == self._history[period - 1 - length]:
            length += 1
        self._set_active((*self._active, (period, self._length - length)))

    def _longest(self, counts: Callable[[int, int], bool]) -> Repetition | None:
        need = self._thresholds.need
        lengths = {self._length - start: p for p, start in self._active if counts(self._length - start, need[p])}
        if not lengths:
            return None
        length = max(lengths)
        return self.run(lengths[length], self._length - length)


def _recurs(history: array[int], last: int) -> bool:
    """Return whether the last `last` items may also occur up to `last` items earlier. False is certain."""
    size = min(last, NEEDLE)
    tail = history[-size - last :].tobytes()
    return tail.find(tail[-size * history.itemsize :], 0, -history.itemsize) >= 0


def repetition_at_end(
    sequence: Items,
    *,
    max_period: int = MAX_PERIOD,
    min_copies: float = LOOP_COPIES,
    min_length: int = LOOP_LENGTH,
) -> Repetition | None:
    """Return `RepetitionDetector.current` after these tokens, without any state. Also takes a `str` or `bytes`.

    Reads the last max_period * min_copies items, or only the last max_period if the end does not recur. For one token at
    a time, `RepetitionDetector` is much faster.

    >>> repetition_at_end([7, *[1, 2, 3] * 20]).unit
    (1, 2, 3)
    >>> repetition_at_end("and so on " * 10 + ".") is None
    True
    """
    thresholds = Thresholds.of(max_period, min_copies, min_length)
    tail = as_array(sequence[-thresholds.reach :])
    best, longest = 0, 0
    for period in _distances(tail, max_period, thresholds.overlap):
        if best + period <= longest:
            continue  # a period that counts is a multiple of the best one (Fine and Wilf)
        differs = tail[period:][::-1] != tail[:-period][::-1]
        length = period + (int(differs.argmax()) if differs.any() else len(differs))
        if length >= thresholds.need[period] and length > longest:
            best, longest = period, length
    if not best:
        return None
    while longest < len(sequence) and sequence[-1 - longest] == sequence[best - 1 - longest]:
        longest += 1
    return make_repetition(sequence, len(sequence) - longest, best, len(sequence))


def _distances(tail: npt.NDArray[Any], farthest: int, size: int) -> list[int]:
    """Return, ascending, all distances at which the last `size` items occurred before, and perhaps a few others."""
    n = len(tail)
    found = np.flatnonzero(tail[max(0, n - 1 - farthest) : n - 1][::-1] == tail[n - 1 :]) + 1
    for back in range(1, min(size, n)):
        if len(found) <= 2:
            break
        found = found[found < n - back]
        found = found[tail[n - 1 - back - found] == tail[n - 1 - back]]
    return found.tolist()


class stop_on_repetition(Iterator[Any]):
    """Yield the items of a stream until they repeat; then close the stream.

    The item with which the run reaches the threshold is the last one. `repetition` is then the run; it is `None` before
    that, and if the stream ends by itself.

    Args:
        stream: any iterable of token ids, of lists of token ids, of `str` (compared by code points) or of `bytes`.
        key: a function that returns one of these from an item of another type.
        structure: whether to stop at repetition of a frame with other words or numbers too; for streams of `str`. It stops
            long tables and lists of tests as well, so it is off by default.
        options: `max_period`, `min_copies` and `min_length` of `RepetitionDetector`. The defaults are 20 copies and 480
            items, because a stopped stream cannot recover, and a list of zeros is a run too.

    >>> stream = stop_on_repetition("ha" for _ in range(1_000_000))
    >>> len("".join(stream)), stream.repetition.unit
    (480, 'ha')
    """

    def __init__(
        self,
        stream: Iterable[Any],
        *,
        key: Callable[[Any], Any] | None = None,
        structure: bool = False,
        **options: Any,
    ) -> None:
        self.repetition: Repetition | StructuralRun | None = None
        self._stream = iter(stream)
        self._key = key
        limits = {"min_copies": DEGENERATE_COPIES, "min_length": STOP_LENGTH}
        self._detector = RepetitionDetector(max_rewind=0, **limits | options)
        self._structure = StructureDetector() if boolean("structure", structure) else None

    def __next__(self) -> Any:
        if self.repetition is not None:
            raise StopIteration
        item = next(self._stream)
        self.repetition = self._push(item if self._key is None else self._key(item))
        if self.repetition is not None and hasattr(self._stream, "close"):
            self._stream.close()
        return item

    def _push(self, tokens: Any) -> Repetition | StructuralRun | None:
        if isinstance(tokens, str):
            found = self._detector.extend(map(ord, tokens))
            framed = self._structure.push(tokens) if self._structure else None
            return replace(found, unit="".join(map(chr, found.unit))) if found else framed  # type: ignore[arg-type]
        if self._structure is not None:
            raise bad_value("structure", True, "False for streams that are not text, because letters are compared")
        if hasattr(tokens, "__index__") or not isinstance(tokens, Iterable):
            return self._detector.push(tokens)
        return self._detector.extend(tokens)
