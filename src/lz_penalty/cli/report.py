"""`lz-penalty report`: a study's figures, tables and pages."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console

from lz_penalty._files import check_output_folder


def report(
    study: Path = typer.Argument(
        help="A study's folder: logs of `lz-penalty eval`, or the tables that a report wrote."
    ),
    out: Path = typer.Option(None, help="Where the report goes; the study's folder by default."),
    from_tables: bool = typer.Option(
        False, help="Read results.csv and costs.csv and no logs, even where there are some."
    ),
) -> None:
    """Turn logs into the paper's figures, a Pareto plot, tables with intervals and significance, Markdown and HTML.

    results.csv and costs.csv hold all that the rest is made from; the same ones give the same bytes.
    """
    check_output_folder(out or study, "--out" if out else "the study")
    from lz_penalty.evaluation.study.report import write_report

    written = write_report(study, out or study, from_tables=from_tables)
    Console(stderr=True).print(f"{written / 'report.html'} and {written / 'report.md'}", highlight=False)
