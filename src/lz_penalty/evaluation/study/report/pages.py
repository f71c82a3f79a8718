"""Write the report as Markdown and as one HTML page."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

from lz_penalty._files import write_file
from lz_penalty.evaluation.measures import DEGENERATE
from lz_penalty.evaluation.study.report.figures import Picture
from lz_penalty.evaluation.study.report.tables import has_accuracy, reader_table
from lz_penalty.evaluation.study.results import COST_TOKENS, Cost
from lz_penalty.evaluation.study.statistics import Summary

__all__ = ["write_pages"]

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a }
table { border-collapse: collapse; font-size: 0.85rem; display: block; overflow-x: auto; margin: 1rem 0 }
th, td { padding: 0.25rem 0.6rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap }
th:first-child, td:first-child { text-align: left }
img { max-width: 100% }
@media (prefers-color-scheme: dark) {
  body { background: #161616; color: #e6e6e6 } th, td { border-color: #444 } img { background: #fff }
}
"""
METHOD = """\
Accuracy and degenerate repetition are means over samples and runs; brackets hold 95 % intervals (Wilson, each sample
counted once), error bars in the figures the standard deviation over runs. "Against none" is the change in percentage points
against no penalty on the same samples at the same temperature, with p of a paired permutation test, corrected by Holm over
the task's cells; bold below 0.05. Degenerate: {degenerate}. Ends in a loop: the text ends inside five copies or more
of one unit. Wasted: tokens of copies after the first. Human-text cost: bits per token by which the penalised model predicts
human text worse, on at most {tokens} tokens of each passage; docs/cost.md compares it with other measurements of harm. All
numbers: [summary.csv](summary.csv), from [results.csv](results.csv)."""
UNGATED = "ungated"  # no name of a preset, but of the preset `guarded` in results from before the first release
ABOUT_UNGATED = """\
`ungated` is `guarded` as it was before the first release: strength 0.15, copies of three tokens, no gate, and the prompt
counts. Today's `guarded` is not measured here."""


def write_pages(
    out: Path, found: Sequence[Summary], costs: Sequence[Cost], pictures: Sequence[Picture], unjudged: int = 0
) -> None:
    """Write report.md and report.html; the judge gave no verdict on `unjudged` outputs."""
    from markdown_it import MarkdownIt

    text = _markdown(found, costs, pictures, unjudged)
    write_file(out / "report.md", text)
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    models = ", ".join(dict.fromkeys(item.model for item in found))
    page = (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width">\n'
        f"<title>{html.escape(f'Repetition and capability: {models}')}</title>\n<style>{STYLE}</style>\n{body}</html>\n"
    )
    write_file(out / "report.html", page)


def _markdown(found: Sequence[Summary], costs: Sequence[Cost], pictures: Sequence[Picture], unjudged: int) -> str:
    judged = any(item.judged == item.judged for item in found)
    degenerate = "exact search and judge both say so" if judged else DEGENERATE
    lines = [
        "# Repetition and capability under penalties",
        "",
        METHOD.format(degenerate=degenerate, tokens=COST_TOKENS),
        "",
    ]
    if any(item.penalty == UNGATED for item in found):
        lines += [ABOUT_UNGATED, ""]
    if unjudged:
        lines += [f"On {unjudged:,} outputs the judge gave no verdict; they are left out of that measure.", ""]
    for model in dict.fromkeys(item.model for item in found):
        lines += [f"## {model}", ""]
        lines += _shown(pictures, model, None)
        mine = [item for item in found if item.model == model]
        for task in dict.fromkeys(item.task for item in mine):
            lines += [f"### {model}: {task}", ""]
            lines += _shown(pictures, model, task)
            cells = [item for item in mine if item.task == task]
            for temperature in sorted({item.temperature for item in cells}):
                some = [item for item in cells if item.temperature == temperature]
                counted = f"{some[0].samples} samples, {some[0].runs} run{'s' if some[0].runs > 1 else ''}"
                lines += [f"Temperature {temperature:g}: {counted}", "", reader_table(some, costs), ""]
            if not has_accuracy(cells):
                lines += ["This task is open-ended: there is no right answer.", ""]
    return "\n".join(lines).rstrip() + "\n"


def _shown(pictures: Sequence[Picture], model: str, task: str | None) -> list[str]:
    lines = []
    for picture in pictures:
        if (picture.model, picture.task) == (model, task):
            lines += [f"![{picture.caption}]({picture.path})", "", f"*{picture.caption}*", ""]
    return lines
