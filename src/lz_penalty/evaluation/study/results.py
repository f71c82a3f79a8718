"""Turn logs into one table with a row per sample and run. A study commits this table, and the report reads it."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from lz_penalty._files import write_file
from lz_penalty.errors import LZPenaltyError

__all__ = ["Cost", "Row", "read_costs", "read_logs", "read_rows", "write_costs", "write_rows"]

ROWS, COSTS = "results.csv", "costs.csv"


@dataclass(frozen=True)
class Row:
    """The results of one sample in one run; a value that was not measured is not a number.

    Args:
        model, task, penalty, temperature: the cell.
        run: counted from 1.
        sample: its id.
        correct: 0 to 1.
        exact, degenerate, loop, judged, dual, onset, wasted, tokens, capped: the values of the scorer `repetition`.
    """

    model: str
    task: str
    penalty: str
    temperature: float
    run: int
    sample: str
    correct: float = math.nan
    exact: float = math.nan
    degenerate: float = math.nan
    loop: float = math.nan
    judged: float = math.nan
    dual: float = math.nan
    onset: float = math.nan
    wasted: float = math.nan
    tokens: float = math.nan
    capped: float = math.nan


@dataclass(frozen=True)
class Cost:
    """How many bits per token worse a penalised model predicts human text, with its 95 % interval."""

    model: str
    penalty: str
    bits: float
    low: float
    high: float


def read_logs(folder: Path) -> list[Row]:
    """Return all samples of the newest complete log of every cell; errors name the log."""
    from inspect_ai.log import list_eval_logs, read_eval_log

    rows: dict[tuple[Any, ...], list[Row]] = {}
    for info in list_eval_logs(str(folder), descending=False):
        header = read_eval_log(info, header_only=True)
        metadata = header.eval.metadata or {}
        if header.status != "success" or "penalty" not in metadata:
            continue
        cell = metadata["model"], metadata["task"], metadata["penalty"], float(metadata["temperature"])
        rows[cell] = [_row(cell, sample) for sample in read_eval_log(info).samples or []]
    if not rows:
        raise LZPenaltyError(f"{folder}: no finished log of a study; run `lz-penalty eval` first.")
    return sorted((row for group in rows.values() for row in group), key=_order)


def _row(cell: tuple[str, str, str, float], sample: Any) -> Row:
    from inspect_ai.scorer import value_to_float

    scores = dict(sample.scores or {})
    repetition = scores.pop("repetition", None)
    values = dict(repetition.value) if repetition is not None else {}
    correct = value_to_float()(next(iter(scores.values())).value) if scores else math.nan
    measured: dict[str, Any] = {name: float(value) for name, value in values.items() if value is not None}
    return Row(*cell, run=sample.epoch, sample=str(sample.id), correct=correct, **measured)


def _order(row: Row) -> tuple[Any, ...]:
    return row.model, row.task, row.penalty, row.temperature, row.run, row.sample


# ---------------------------------------------------------------- files


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write rows as sorted CSV, so that equal results give equal bytes."""
    _write(path, Row, sorted(rows, key=_order))


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a file that `write_rows` wrote."""
    return _read(path, Row)


def write_costs(path: Path, costs: Iterable[Cost]) -> None:
    """Write human-text costs as CSV."""
    _write(path, Cost, sorted(costs, key=lambda cost: (cost.model, cost.penalty)))


def read_costs(path: Path) -> list[Cost]:
    """Return the costs of a file that `write_costs` wrote; an empty list if there is no file."""
    return _read(path, Cost) if path.exists() else []


def _write(path: Path, kind: type, items: Sequence[Any]) -> None:
    names = [field.name for field in fields(kind)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_shown(getattr(item, name)) for name in names] for item in items)
    write_file(path, text.getvalue())


def _shown(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return "" if math.isnan(value) else f"{value:.6g}"


def _read(path: Path, kind: type) -> list[Any]:
    types = {field.name: str(field.type) for field in fields(kind)}
    made = []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            if reader.fieldnames != list(types):
                raise ValueError(f"its columns must be {', '.join(types)}")
            for line in reader:
                made.append(kind(**{name: _parsed(types[name], line[name]) for name in types}))
    except (OSError, ValueError, TypeError, UnicodeDecodeError) as error:
        raise LZPenaltyError(f"{path}: not a table of results ({error}).") from None
    return made


def _parsed(kind: str, text: str) -> Any:
    if kind == "float":
        return float(text) if text else math.nan
    return int(text) if kind == "int" else text
