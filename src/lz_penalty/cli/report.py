"""`lz-penalty report`: write a study's figures, tables and pages."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console

from lz_penalty._files import check_output_folder


def report(
    study: Path = typer.Argument(
        help="A study's folder: logs or answers of `lz-penalty eval`, or the tables that a report wrote."
    ),
    out: Path = typer.Option(None, help="The report's folder; the study's by default."),
    from_tables: bool = typer.Option(False, help="Read results.csv and costs.csv instead of logs."),
) -> None:
    """Turn logs into the paper's figures, a Pareto plot, tables with intervals and significance, Markdown and HTML.

    Everything else is made from results.csv and costs.csv; equal tables give equal bytes. A study that `lz-penalty eval real`
    ran has a result file per job instead of logs.
    """
    check_output_folder(out or study, "--out" if out else "the study")
    from lz_penalty.evaluation.study._offline.report import is_study, write_offline_report

    if is_study(study):
        Console(stderr=True).print(str(write_offline_report(study, out or study)), highlight=False)
        return
    from lz_penalty.evaluation.study.report import write_report

    written = write_report(study, out or study, from_tables=from_tables)
    Console(stderr=True).print(f"{written / 'report.html'} and {written / 'report.md'}", highlight=False)
