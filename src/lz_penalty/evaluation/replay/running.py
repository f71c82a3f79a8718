"""Replay a log: send the requests without an answer, many at a time, then judge and count all in the log's order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from lz_penalty._checks import choice, integer
from lz_penalty.detection._records import Problem
from lz_penalty.detection._verdict import CRITERIA
from lz_penalty.errors import LZPenaltyError, show, shown_name
from lz_penalty.evaluation.measures import Checker
from lz_penalty.evaluation.replay.log import OFF, Log, Stored, alone, requests, with_settings
from lz_penalty.evaluation.replay.pairs import Summary, judge
from lz_penalty.evaluation.replay.results import Results
from lz_penalty.evaluation.replay.sending import Endpoint, FailedError, UnreachableError
from lz_penalty.policy import RequestPolicy, settings_from_request

__all__ = ["Replay", "replay"]

MOST_UNREACHABLE = 20  # after so many requests in a row without an answer no more are sent


@dataclass(frozen=True)
class Replay:
    """How a log is replayed.

    Args:
        log: how requests are read.
        fields: the `lz_*` fields of the penalty: one setting, or a policy.
        style: where the server reads its settings; see `log.STYLES`.
        concurrency: how many requests are sent at once.
        criteria: names of criteria of `detect`; an answer is a loop if any of them finds one.
        checker: decides which answers are right.
        probe: whether to check first that the server has the penalty: it must refuse a setting that is out of range.
    """

    log: Log
    fields: Mapping[str, Any]
    style: str = "flat"
    concurrency: int = 8
    criteria: tuple[str, ...] = ("tandem",)
    checker: Checker | None = None
    probe: bool = True

    def __post_init__(self) -> None:
        with_settings({}, self.style, {})  # refuse an unknown style now
        _check_fields(self.fields)
        integer(1, 1_024)("concurrency", self.concurrency)
        for name in self.criteria:
            choice(*CRITERIA)("criterion", name)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that answers depend on."""
        return {
            "penalty": dict(self.fields),
            "style": self.style,
            "model": self.log.model,
            "changes": dict(self.log.changes),
        }


def _check_fields(fields: Mapping[str, Any]) -> None:
    """Raise unless these are `lz_*` fields that can change an answer."""
    for name, value in fields.items():
        if not name.startswith("lz_"):
            raise LZPenaltyError(f"{shown_name(name)} = {show(value)}: unknown field. Use fields that begin with lz_.")
    asked = settings_from_request(fields)
    if asked is None:
        raise LZPenaltyError('there is no penalty in these fields; give some, such as {"lz_policy": "default"}.')
    if isinstance(asked, RequestPolicy) and asked.shadow:
        raise LZPenaltyError(
            "lz_shadow: shadow mode changes no answer, so replay has nothing to compare; leave it out."
        )


def replay(
    source: str,
    what: Replay,
    endpoint: Endpoint,
    results: Results,
    *,
    tick: Callable[[], None] = lambda: None,
    report: Callable[[Problem], None] = lambda problem: None,
) -> Summary:
    """Replay the requests of a file of JSON lines; those whose answers are in `results` are not sent.

    `tick` is called for every line that is done, and `report` with every problem; the other requests continue.
    """
    errors = asyncio.run(_Sender(source, what, endpoint, results, tick, report).run())
    summary = Summary()
    with results.replaced() as write:
        for stored in requests(source, what.log):
            if isinstance(stored, Problem):
                summary.problems += 1
                write({"line": stored.line, "error": stored.message})
            elif stored in results:
                write(_judged(stored, what, results, summary))
            else:
                summary.problems += 1
                write({"line": stored.line, "key": stored.key, "error": errors.get(stored.line, "not sent")})
    return summary


def _judged(stored: Stored, what: Replay, results: Results, summary: Summary) -> dict[str, Any]:
    """Count one request, and return its row of the file."""
    given = results.answers(stored)
    without, with_penalty = (judge(answer, stored.expected, what.criteria, what.checker) for answer in given)
    summary.add(without, with_penalty, stored.sampled)
    return {
        "line": stored.line,
        "key": stored.key,
        "changed": without.whole != with_penalty.whole,
        "without": asdict(without),
        "with": asdict(with_penalty),
    }


@dataclass
class _Sender:
    """Sends the requests without an answer; each worker takes the next request when it has finished one."""

    source: str
    what: Replay
    endpoint: Endpoint
    results: Results
    tick: Callable[[], None]
    report: Callable[[Problem], None]
    errors: dict[int, str] = field(default_factory=dict)
    unreachable: int = 0  # requests in a row without an answer

    async def run(self) -> dict[int, str]:
        """Send all requests, and return the errors by line."""
        async with self.endpoint:
            if self.what.probe:
                await self._probe()
            waiting = self._waiting()
            await asyncio.gather(*(self._worker(waiting) for _ in range(self.what.concurrency)))
        return self.errors

    def _waiting(self) -> Iterator[Stored]:
        for stored in requests(self.source, self.what.log):
            if isinstance(stored, Problem):
                self.report(stored)
            elif stored not in self.results:
                yield stored
                continue
            self.tick()

    async def _probe(self) -> None:
        """Raise an error if the server lacks the penalty: it would ignore the settings, and nothing would change."""
        found = (one for one in requests(self.source, self.what.log) if isinstance(one, Stored))
        stored = next((one for one in found if one not in self.results), None)
        if stored is None:
            return
        try:
            refused = await self.endpoint.refuses_bad_settings(stored.path, stored.body, self.what.style)
        except UnreachableError as error:
            raise LZPenaltyError(f"{error}; is the server running?") from None
        except FailedError:
            return  # the error will recur for the request itself
        if not refused:
            raise LZPenaltyError(
                f"{self.endpoint.url} accepts lz_penalty = -1 in the style {self.what.style!r}: it does not have the "
                "penalty, or takes its settings elsewhere (--style). --no-probe replays all the same."
            )

    async def _worker(self, waiting: Iterator[Stored]) -> None:
        for stored in waiting:
            if self.unreachable >= MOST_UNREACHABLE:
                self._failed(stored, "not sent: the server no longer answers; run the command again to continue.")
                continue
            try:
                style = self.what.style
                without, with_penalty = [
                    await self.endpoint.ask(stored.path, with_settings(stored.body, style, alone(style, settings)))
                    for settings in (OFF, self.what.fields)
                ]
            except FailedError as error:
                self.unreachable = self.unreachable + 1 if isinstance(error, UnreachableError) else 0
                self._failed(stored, str(error))
            else:
                self.unreachable = 0
                self.results.add(stored, without, with_penalty)
                self.tick()

    def _failed(self, stored: Stored, message: str) -> None:
        self.errors[stored.line] = message
        self.report(Problem(self.source, stored.line, message))
        self.tick()
