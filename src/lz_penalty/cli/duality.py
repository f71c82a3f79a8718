"""`lz-penalty duality`: compress text with a language model, and with LZSS as a language model."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import Progress

from lz_penalty._files import check_output
from lz_penalty.cli.interrupts import again, keeps
from lz_penalty.cli.options import ABOUT_OUTPUT, JSON, MODEL
from lz_penalty.cli.output import number_table, say_loading


def duality(
    passages: int = typer.Option(4, min=1, max=64, help="How many passages of human text to compress."),
    characters: int = typer.Option(100_000, min=1, max=100_000, help="At most this many characters of each passage."),
    penalty: list[str] = typer.Option(
        ["paper", "guarded"],
        "--penalty",
        "-p",
        metavar="PENALTY",
        help="Also compress with the model and this penalty. May be repeated.",
    ),
    model: str = MODEL,
    out: Path = typer.Option(None, help="Write the results to this file, as JSON.", rich_help_panel=ABOUT_OUTPUT),
    as_json: bool = JSON,
) -> None:
    """Compress text with a language model, and with LZSS.

    Examples:
        lz-penalty duality --passages 1 --characters 300
        lz-penalty duality --penalty guarded --out duality.json

    Each text is coded separately, token by token in float32 on the CPU, then decoded and compared with the text. This needs
    `pip install 'lz-penalty[duality]'`.
    """
    keeps(f"Nothing was kept: the results are written at the end. Begin again with: {again()}")
    if out is not None:
        check_output(out)
    from lz_penalty import bundled_model
    from lz_penalty.evaluation import duality as pages
    from lz_penalty.evaluation.loading import load
    from lz_penalty.evaluation.results_file import write_results

    say_loading(model)
    loaded = load(model, "cpu", "float32")
    texts = [text[:characters] for text in bundled_model.passages()[:passages]]
    makers = pages.predictors(loaded, penalty)
    screen = Console(stderr=True)
    with Progress(console=screen, disable=not screen.is_terminal) as progress:
        task = progress.add_task("", total=len(texts) * len(makers))
        rows = pages.duality(loaded, texts, makers, tick=lambda count: progress.advance(task, count))
    if out:
        write_results(out, {"model": model, "passages": passages, "characters": characters}, [*map(asdict, rows)])
    if as_json:
        print(json.dumps([*map(asdict, rows)], indent=2))
        return
    table = number_table("coded by", "cross-\nentropy", "code", "excess\nin bits", "bits per\nbyte", "decoded")
    for row in rows:
        table.add_row(
            row.name,
            "" if row.cross_entropy is None else f"{row.cross_entropy / row.tokens:.4f}",
            f"{row.bits / row.tokens:.4f}",
            "" if row.worst_excess is None else f"{row.worst_excess:+.2f}",
            f"{row.bits / row.bytes:.3f}",
            {None: "", True: "yes", False: "NO"}[row.decoded],
        )
    Console().print(table)
    if any(row.decoded is False for row in rows):
        raise typer.Exit(1)
