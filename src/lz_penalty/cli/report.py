"""`lz-penalty report`: write a study's figures, tables and pages."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console

from lz_penalty._files import check_output_folder
from lz_penalty.cli.interrupts import again, keeps


def report(
    study: Path = typer.Argument(
        metavar="STUDY", help="A study's folder: results of `lz-penalty eval`, or the tables that a report wrote."
    ),
    out: Path = typer.Option(None, metavar="FOLDER", help="The report's folder.", show_default="the study's"),
    from_tables: bool = typer.Option(False, "--from-tables", help="Read results.csv and costs.csv instead of logs."),
) -> None:
    """Write the figures, tables and page of a study.

    Examples:
        lz-penalty report runs/small
        lz-penalty report runs/small --out report --from-tables

    The report has the paper's figures, a Pareto plot, tables with intervals and significance, report.md and report.html. It
    is made from results.csv and costs.csv: equal tables give exactly equal files. A study of `lz-penalty eval real` has one
    result file per job instead of logs, and no report.html.
    """
    keeps(f"The study's results are unchanged. Begin again with: {again()}")
    check_output_folder(out or study, "--out" if out else "the study")
    from lz_penalty.evaluation.study._offline.report import is_study, write_offline_report

    if is_study(study):
        Console(stderr=True).print(str(write_offline_report(study, out or study)), highlight=False)
        return
    from lz_penalty.evaluation.study.report import write_report

    written = write_report(study, out or study, from_tables=from_tables)
    Console(stderr=True).print(f"{written / 'report.html'} and {written / 'report.md'}", highlight=False)
