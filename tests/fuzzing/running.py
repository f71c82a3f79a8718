"""The loop that all parts share: run each case, measure it, keep the findings."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

KEPT = 10  # findings that are shown in full
LONGEST = 600  # characters of a finding


class Trial(NamedTuple):
    """One case.

    Attributes:
        run: the function that is measured.
        problem: returns what is wrong with the result of `run`, or `None`.
        about: describes the case in a finding.
    """

    run: Callable[[], Any]
    problem: Callable[[Any], str | None]
    about: Callable[[], str]


class Part(NamedTuple):
    """A kind of cases.

    Attributes:
        stream: cases with equal stream, seed and number get equal random numbers.
        cases: the number of cases of a full run.
        seconds: bound on the CPU time of one case, in this thread.
        megabytes: bound on the memory by which the process grows during one case.
        trial: makes a case from random numbers and its own number.
    """

    stream: str
    cases: int
    seconds: float
    megabytes: float
    trial: Callable[[random.Random, int], Trial]


@dataclass
class Result:
    """The result of a part."""

    name: str
    seconds: float
    megabytes: float
    cases: int = 0
    findings: int = 0
    worst_seconds: float = 0.0
    slowest: int = -1
    worst_megabytes: float = 0.0
    largest: int = -1
    total_seconds: float = 0.0
    shown: list[tuple[int, str]] = field(default_factory=list)

    def found(self, number: int, text: str) -> None:
        """Keep a finding."""
        self.findings += 1
        if len(self.shown) < KEPT:
            self.shown.append((number, text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."))

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return asdict(self)


def fuzz(
    name: str, part: Part, seed: int, numbers: Iterable[int], tick: Callable[[int], Any] = lambda done: None
) -> Result:
    """Run these cases of a part.

    Args:
        name: the name of the part.
        part: the part to run.
        seed: determines all random numbers, together with the stream and the number of a case.
        numbers: the cases to run.
        tick: called after each case with the number of cases so far.
    """
    result = Result(name, part.seconds, part.megabytes)
    begin = time.perf_counter()
    for number in numbers:
        _one(result, part, seed, number)
        result.cases += 1
        tick(result.cases)
    result.total_seconds = time.perf_counter() - begin
    return result


def _one(result: Result, part: Part, seed: int, number: int) -> None:
    seconds, megabytes, problem = _measured(part, seed, number)
    if problem is None and (seconds > part.seconds or megabytes > part.megabytes):
        # The first time may include compilation, garbage collection or other load: the bound must be exceeded twice.
        again = _measured(part, seed, number)
        seconds, megabytes, problem = min(seconds, again[0]), min(megabytes, again[1]), again[2]
    if problem is None and seconds > part.seconds:
        problem = f"took {seconds * 1e3:.1f} ms, twice: must be at most {part.seconds * 1e3:g} ms. {_about(part, seed, number)}"
    if problem is None and megabytes > part.megabytes:
        problem = f"took {megabytes:.1f} MB, twice: must be at most {part.megabytes:g} MB. {_about(part, seed, number)}"
    if problem is not None:
        result.found(number, problem)
    if seconds > result.worst_seconds:
        result.worst_seconds, result.slowest = seconds, number
    if megabytes > result.worst_megabytes:
        result.worst_megabytes, result.largest = megabytes, number


def _measured(part: Part, seed: int, number: int) -> tuple[float, float, str | None]:
    """Return CPU seconds and megabytes of a case, and what is wrong with it."""
    trial = _trial(part, seed, number)
    memory = Memory()
    begin = time.thread_time()
    try:
        outcome = trial.run()
    except Exception as error:  # every exception is a finding
        return time.thread_time() - begin, memory.grown(), f"{describe(error)}. {_short(trial.about())}"
    seconds, megabytes = time.thread_time() - begin, memory.grown()
    try:
        problem = trial.problem(outcome)
    except AssertionError as error:
        problem = describe(error)
    return seconds, megabytes, problem and f"{problem}. {_short(trial.about())}"


def _trial(part: Part, seed: int, number: int) -> Trial:
    return part.trial(random.Random(f"{seed} {part.stream} {number}"), number)


def _about(part: Part, seed: int, number: int) -> str:
    return _short(_trial(part, seed, number).about())


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else text[:LONGEST] + "..."


def describe(error: BaseException) -> str:
    """Return an exception in one line, with the place in our code where it was raised."""
    place, trace = "", error.__traceback__
    while trace is not None:
        file = Path(trace.tb_frame.f_code.co_filename)
        if "lz_penalty" in file.parts:
            place = f" at {file.name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return f"{type(error).__name__}{place}: {str(error)[:300]}"


class Memory:
    """Measures by how much the peak memory of the process grows from now on; 0 on systems other than Linux."""

    _reset = os.open("/proc/self/clear_refs", os.O_WRONLY) if sys.platform == "linux" else -1
    _status = os.open("/proc/self/status", os.O_RDONLY) if sys.platform == "linux" else -1

    def __init__(self) -> None:
        if self._reset >= 0:
            os.write(self._reset, b"5")  # reset the peak to the present size
        self._before = self._peak()

    def grown(self) -> float:
        """Return the growth in megabytes."""
        return (self._peak() - self._before) / 1e3

    def _peak(self) -> int:
        if self._status < 0:
            return 0
        text = os.pread(self._status, 4096, 0)
        begin = text.index(b"VmHWM:") + 6
        return int(text[begin : text.index(b"kB", begin)])
