"""Write the report of a study: tables, figures and a page, from the results of its jobs alone."""

from __future__ import annotations

from pathlib import Path

from lz_penalty._files import write_file
from lz_penalty.evaluation.study._offline import figures
from lz_penalty.evaluation.study._offline.differences import DRAWS
from lz_penalty.evaluation.study._offline.page import page
from lz_penalty.evaluation.study._offline.study import GREEDY, STUDY, read_study
from lz_penalty.evaluation.study._offline.tables import write_tables

__all__ = ["is_study", "write_offline_report"]


def is_study(folder: Path) -> bool:
    """Return whether a folder contains a study that vLLM ran in one process."""
    return (folder / STUDY).exists() or (folder / "answers").is_dir()


def write_offline_report(folder: Path, out: Path) -> Path:
    """Write report.md, figures/ and tables/; equal results give equal bytes."""
    study = read_study(folder)
    place = out / "figures"
    place.mkdir(parents=True, exist_ok=True)
    drawn = []
    if study.tuning or study.harm:
        figures.harm_figure(study, place / "loops-harm.svg")
        drawn.append("loops-harm")
    if figures.temperature_tasks(study):
        figures.temperature_figure(study, place / "temperature.svg")
        drawn.append("temperature")
    if any(cell[1:3] == ("instructions", GREEDY) for cell in study.answers):
        figures.savings_figure(study, place / "tokens.svg")
        drawn.append("tokens")
    write_tables(study, out / "tables")
    write_file(out / "report.md", page(study, drawn, DRAWS))
    return out / "report.md"
