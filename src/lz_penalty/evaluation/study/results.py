"""Turn logs into one table with a row per sample and run. A study commits this table, and the report reads it."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from lz_penalty._files import write_file
from lz_penalty.errors import LZPenaltyError

__all__ = ["Cost", "Row", "read_costs", "read_logs", "read_rows", "write_costs", "write_rows", "write_table"]

ROWS, COSTS = "results.csv", "costs.csv"
COST_TOKENS = 512  # of each passage of human text, at most


class Row(NamedTuple):
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


class Cost(NamedTuple):
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
    return sorted((row for group in rows.values() for row in group), key=_place)


def _row(cell: tuple[str, str, str, float], sample: Any) -> Row:
    from inspect_ai.scorer import value_to_float

    scores = dict(sample.scores or {})
    repetition = scores.pop("repetition", None)
    values = dict(repetition.value) if repetition is not None else {}
    correct = value_to_float()(next(iter(scores.values())).value) if scores else math.nan
    measured: dict[str, Any] = {name: float(value) for name, value in values.items() if value is not None}
    return Row(*cell, run=sample.epoch, sample=str(sample.id), correct=correct, **measured)


def _place(row: Row) -> tuple[Any, ...]:
    return row[:6]  # the cell, the run and the sample


# ---------------------------------------------------------------- files


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write rows as sorted CSV, so that equal results give equal bytes."""
    write_table(path, Row._fields, sorted(rows, key=_place))


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a file that `write_rows` wrote."""
    return _read(path, Row)


def write_costs(path: Path, costs: Iterable[Cost]) -> None:
    """Write human-text costs as CSV."""
    write_table(path, Cost._fields, sorted(costs, key=lambda cost: cost[:2]))


def read_costs(path: Path) -> list[Cost]:
    """Return the costs of a file that `write_costs` wrote; an empty list if there is no file."""
    return _read(path, Cost) if path.exists() else []


def write_table(path: Path, names: Sequence[str], items: Iterable[Any], digits: int = 6) -> None:
    """Write CSV. Numbers with a fraction get so many significant digits; one that was not measured is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_shown(value, digits) for value in item] for item in items)
    write_file(path, text.getvalue())


def _shown(value: Any, digits: int) -> str:
    if not isinstance(value, float):
        return str(value)
    return "" if math.isnan(value) else f"{value:.{digits}g}"


def _read(path: Path, kind: Any) -> list[Any]:
    types = get_type_hints(kind)
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


def _parsed(kind: type, text: str) -> Any:
    return math.nan if kind is float and not text else kind(text)
