"""Examine many documents, in order and in bounded memory, and summarise the results."""

from __future__ import annotations

import heapq
import os
import re
import signal
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from lz_penalty._checks import choice, integer, real
from lz_penalty.detection._records import Problem, Reading, Record, decode, read
from lz_penalty.detection._tandem import MAX_ITEMS
from lz_penalty.detection._verdict import CAPPED, CRITERIA, FINISHED, Limits, Verdict, dual
from lz_penalty.detection.judge import Judge, Judgement
from lz_penalty.errors import LZPenaltyError, bad_value, show

if TYPE_CHECKING:
    from lz_penalty.detection._ray_scan import scan_ray

__all__ = [
    "Document",
    "Limits",
    "Problem",
    "Reading",
    "Scan",
    "Summary",
    "examine",
    "judged",
    "scan",
    "scan_ray",
]

# Some documents without a verdict are examined again with the criteria that were not asked for, to suggest one of them.
SUGGESTED = ("block", "structure", "counter", "drift")
SAMPLE_EVERY, SAMPLE_CHARACTERS = 8, 4_096
BATCH_BYTES = 2**20  # sent to another process at once
LONGEST_UNIT = 200  # characters of a unit in results
JUDGE_CHARACTERS = 16 * 2**20  # in texts that wait for the judge
JUDGE_WAITING = 4_096  # documents that wait with them
LIKE_JSON = re.compile(r'\s*\[?\s*\{\s*"')  # an object, or a list of objects


def __getattr__(name: str) -> Any:
    """Import `scan_ray` when it is first used, because its module imports this one."""
    if name != "scan_ray":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from lz_penalty.detection._ray_scan import scan_ray

    return scan_ray


@dataclass(frozen=True)
class Scan:
    """The settings of a scan.

    Args:
        criteria: names of criteria, for all texts. By default `tandem`, and for texts that a limit cut off also `block`
            and `structure`.
        limits: when copies count as a loop.
        reading: how to read files.
        keep_text: which documents keep their text for the judge: "none", "flagged" or "all".
    """

    criteria: tuple[str, ...] | None = None
    limits: Limits = field(default_factory=Limits)
    reading: Reading = field(default_factory=Reading)
    keep_text: str = "none"

    def __post_init__(self) -> None:
        if isinstance(self.criteria, str):
            raise bad_value("criteria", self.criteria, f"a tuple of names, such as ({show(self.criteria)},)")
        for name in self.names:
            choice(*CRITERIA)("criterion", name)
        if self.limits.min_copies is not None:
            real(2, 1_000_000)("min_copies", self.limits.min_copies)
        if self.limits.min_length is not None:
            integer(1, MAX_ITEMS)("min_length", self.limits.min_length)
        choice("none", "flagged", "all")("keep_text", self.keep_text)
        if not self.limits.at_end and not {"tandem", "counter", "edited"} & set(self.names):
            raise LZPenaltyError(
                "anywhere: only tandem, counter and edited are limited to the end, and none is requested. Leave it out."
            )
        if replace(self.limits, at_end=True) != Limits() and "tandem" not in self.names:
            raise LZPenaltyError(
                "min_copies and min_length are limits of the criterion tandem, which is not requested. Leave them out."
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all criteria that may be used."""
        return CAPPED if self.criteria is None else self.criteria

    def of(self, capped: bool) -> tuple[str, ...]:
        """Return the criteria for a text; `capped` says whether a limit on tokens cut it off."""
        if self.criteria is not None:
            return self.criteria
        return CAPPED if capped else FINISHED


@dataclass(frozen=True)
class Document:
    """A document and its verdicts.

    Args:
        source: the file.
        line: the line or row in it, `None` for a whole file.
        characters: the length of the document.
        verdicts: one for each criterion that found a loop.
        judgement: the judge's verdict, if the judge was asked.
        capped: whether a limit on tokens cut the text off.
        missed: criteria that were not asked for and would find a loop; `None` if the document was not examined with them.
        text: the text, which is kept for the judge only.
        like_json: whether a whole file was read as this text because of its name, and begins as JSON does.
    """

    source: str
    line: int | None
    characters: int
    verdicts: tuple[Verdict, ...] = ()
    judgement: Judgement | None = None
    capped: bool = False
    missed: tuple[str, ...] | None = None
    text: str | None = None
    like_json: bool = False

    @property
    def flagged(self) -> bool:
        """Whether a criterion found a loop."""
        return bool(self.verdicts)

    @property
    def dual(self) -> bool | None:
        """Whether search and judge agree that it is a loop; `None` if that is unknown."""
        return dual(self.flagged, self.judgement.loop if self.judgement else None)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data, with long units cut."""
        row: dict[str, Any] = {"source": self.source, "line": self.line, "characters": self.characters}
        row["capped"] = self.capped
        row["verdicts"] = [
            asdict(one) | {"unit": one.unit[:LONGEST_UNIT], "unit_length": len(one.unit)} for one in self.verdicts
        ]
        if self.judgement is not None:
            row |= {"judge": asdict(self.judgement), "dual": self.dual}
        return row


def examine(record: Record | Problem, settings: Scan) -> Document | Problem:
    """Return one document with its verdicts."""
    found = record if isinstance(record, Problem) else decode(record, settings.reading)
    if isinstance(found, Problem):
        return found
    text = found.text
    verdicts = tuple(one for name in settings.of(found.capped) if (one := CRITERIA[name](text, settings.limits)))
    missed = _missed(text, settings) if not verdicts and _is_sampled(text) else None
    keep = settings.keep_text == "all" or (settings.keep_text == "flagged" and bool(verdicts))
    kept = text if keep else None
    like_json = record.line is None and settings.reading.format == "auto" and LIKE_JSON.match(text) is not None
    return Document(
        record.source,
        record.line,
        len(text),
        verdicts,
        capped=found.capped,
        missed=missed,
        text=kept,
        like_json=like_json,
    )


def _is_sampled(text: str) -> bool:
    """Return whether a document is in the sample. Only its end decides, so that every way of reading takes the same ones."""
    return zlib.crc32(text[-64:].encode("utf-8", "replace")) % SAMPLE_EVERY == 0


def _missed(text: str, settings: Scan) -> tuple[str, ...]:
    """Return the criteria that were not asked for and find a loop in the end of the text."""
    others = (name for name in SUGGESTED if name not in settings.of(False))
    return tuple(name for name in others if CRITERIA[name](text[-SAMPLE_CHARACTERS:], Limits()))


def paths(sources: Iterable[str | os.PathLike[str]]) -> Iterator[str]:
    """Return the paths as strings; raise if this is one path, whose characters would be read as names of files."""
    if isinstance(sources, (str, os.PathLike)):
        raise bad_value("sources", sources, f"a list of paths, such as [{show(os.fspath(sources))}]")
    return (os.fspath(source) for source in sources)


def scan(
    sources: Iterable[str | os.PathLike[str]],
    settings: Scan,
    *,
    workers: int = 1,
    tick: Callable[[int], Any] | None = None,
) -> Iterator[Document | Problem]:
    """Yield every document of the files with its verdicts, in order.

    Args:
        sources: paths; `-` is standard input.
        settings: what to look for.
        workers: processes that examine documents; this process reads. Several need a `__main__` that can be imported.
        tick: called with the number of bytes read since the last call.
    """
    integer(1, 1_024)("workers", workers)
    records = chain.from_iterable(read(source, settings.reading, tick=tick) for source in paths(sources))
    if workers == 1:
        return (examine(record, settings) for record in records)
    return _in_processes(records, settings, workers)


def _in_processes(records: Iterator[Record | Problem], settings: Scan, workers: int) -> Iterator[Document | Problem]:
    from concurrent.futures import Future, ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    pending: deque[Future[list[Document | Problem]]] = deque()
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    try:
        for batch in _batches(records):
            with _without_interrupts():
                pending.append(pool.submit(_examine_all, batch, settings))
            if len(pending) > 2 * workers:
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()
    except BrokenProcessPool:
        raise LZPenaltyError(
            f"workers = {workers}: a worker process ended; use fewer workers if memory is short. In your own script, "
            "call scan under `if __name__ == '__main__':`."
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Hold SIGINT back. A process that is started meanwhile never gets it: Ctrl-C is for the process that reads."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _examine_all(records: list[Record | Problem], settings: Scan) -> list[Document | Problem]:
    return [examine(record, settings) for record in records]


def _batches(records: Iterator[Record | Problem]) -> Iterator[list[Record | Problem]]:
    batch: list[Record | Problem] = []
    size = 0
    for record in records:
        batch.append(record)
        size += 1_000 + (0 if isinstance(record, Problem) else len(record.data))
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def judged(results: Iterable[Document | Problem], judge: Judge) -> Iterator[Document | Problem]:
    """Yield the results in order, with a judgement added to each document that kept its text."""
    waiting: list[Document | Problem] = []
    texts = characters = 0
    for result in results:
        waiting.append(result)
        if isinstance(result, Document) and result.text is not None:
            texts += 1
            characters += result.characters
        if texts >= 8 * judge.concurrency or characters >= JUDGE_CHARACTERS or len(waiting) >= JUDGE_WAITING:
            yield from _judge_all(waiting, judge)
            waiting, texts, characters = [], 0, 0
    yield from _judge_all(waiting, judge)


def _judge_all(waiting: Sequence[Document | Problem], judge: Judge) -> Iterator[Document | Problem]:
    texts = [result.text for result in waiting if isinstance(result, Document) and result.text is not None]
    judgements = iter(judge.ask_many(texts) if texts else [])
    for result in waiting:
        if isinstance(result, Document) and result.text is not None:
            yield replace(result, judgement=next(judgements), text=None)
        else:
            yield result


@dataclass
class Tally:
    """The number of documents that a criterion flags, and of their characters after the first copy."""

    documents: int = 0
    wasted: int | None = 0


@dataclass
class Summary:
    """Totals over the results of a scan.

    Args:
        criteria: the names of the criteria.
        keep: how many of the worst documents to keep.
    """

    criteria: tuple[str, ...]
    keep: int = 5
    documents: int = 0
    characters: int = 0
    flagged: int = 0
    problems: int = 0
    first_problems: list[Problem] = field(default_factory=list)
    judged: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("asked", "loop", "no loop", "unknown"), 0))
    dual: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("loop", "unknown"), 0))
    sampled: int = 0
    missed: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.by_criterion = {name: Tally() for name in self.criteria}
        self._worst: list[tuple[int, int, Document]] = []

    def add(self, result: Document | Problem) -> None:
        """Add one result."""
        if isinstance(result, Problem):
            self.problems += 1
            if len(self.first_problems) < 100:
                self.first_problems.append(result)
            return
        self.documents += 1
        self.characters += result.characters
        if result.judgement is not None:
            self._add_judgement(result)
        if result.missed is not None:
            self.sampled += 1
            for name in result.missed:
                self.missed[name] = self.missed.get(name, 0) + 1
        if not result.flagged:
            return
        self.flagged += 1
        for verdict in result.verdicts:
            tally = self.by_criterion[verdict.criterion]
            tally.documents += 1
            tally.wasted = None if verdict.wasted is None or tally.wasted is None else tally.wasted + verdict.wasted
        worst = max(verdict.wasted or 0 for verdict in result.verdicts)
        heapq.heappush(self._worst, (worst, -self.documents, result))  # on ties, the earlier document is kept
        if len(self._worst) > self.keep:
            heapq.heappop(self._worst)

    def _add_judgement(self, result: Document) -> None:
        self.judged["asked"] += 1
        loop = result.judgement.loop if result.judgement else None
        self.judged["unknown" if loop is None else "loop" if loop else "no loop"] += 1
        if result.dual is not False:
            self.dual["unknown" if result.dual is None else "loop"] += 1

    def worst(self) -> list[Document]:
        """Return the documents with the most wasted characters."""
        return [document for *_, document in sorted(self._worst, reverse=True)]

    def share(self, documents: int) -> float:
        """Return this number as a share of all documents; 0 if there are none."""
        return documents / self.documents if self.documents else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the totals as plain data."""
        out: dict[str, Any] = {
            "documents": self.documents,
            "characters": self.characters,
            "flagged": self.flagged,
            "share": self.share(self.flagged),
            "criteria": {
                name: asdict(tally) | {"share": self.share(tally.documents)}
                for name, tally in self.by_criterion.items()
            },
        }
        if self.missed:
            out["suggested"] = {"sampled": self.sampled, "criteria": self.missed}
        if self.judged["asked"]:
            out |= {"judge": self.judged, "dual": self.dual | {"share": self.share(self.dual["loop"])}}
        out["worst"] = [document.to_dict() for document in self.worst()]
        out["problems"] = {"count": self.problems, "first": [asdict(problem) for problem in self.first_problems]}
        return out
