"""Write a study's report: tables from its logs, then figures and pages from the tables alone."""

from __future__ import annotations

import math
from pathlib import Path

from lz_penalty.errors import LZPenaltyError
from lz_penalty.evaluation.study.report.figures import draw
from lz_penalty.evaluation.study.report.pages import write_pages
from lz_penalty.evaluation.study.report.tables import write_summary
from lz_penalty.evaluation.study.results import COSTS, ROWS, read_costs, read_logs, read_rows, write_costs, write_rows
from lz_penalty.evaluation.study.statistics import summaries, was_judged

__all__ = ["write_report"]


def write_report(study: Path, out: Path, *, from_tables: bool = False) -> Path:
    """Write results.csv, summary.csv, costs.csv, figures/, report.md and report.html.

    A study is a folder with logs or with results.csv; `from_tables` reads the tables even if there are logs.
    """
    logs = study / "logs"
    if logs.is_dir() and not from_tables:
        rows = read_logs(logs)
    elif (study / ROWS).exists():
        rows = read_rows(study / ROWS)
    else:
        raise LZPenaltyError(f"{study}: neither logs/ nor {ROWS}; run `lz-penalty eval` first.")
    costs = read_costs(study / COSTS)
    out.mkdir(parents=True, exist_ok=True)
    write_rows(out / ROWS, rows)
    if costs:
        write_costs(out / COSTS, costs)
    rows = read_rows(out / ROWS)  # rounded, so that logs and tables give the same numbers
    found = summaries(rows)
    write_summary(out / "summary.csv", found, costs)
    pictures = draw(found, costs, out / "figures")
    unjudged = sum(math.isnan(row.dual) for row in rows) if was_judged(rows) else 0
    write_pages(out, found, costs, pictures, unjudged)
    return out
