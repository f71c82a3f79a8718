"""`lz-penalty compare`: measure penalties side by side."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import Progress, TimeRemainingColumn
from rich.table import Table

from lz_penalty._files import check_output
from lz_penalty.cli.options import DEVICE, DTYPE, MODEL

DEFAULT = "none repetition:1.2 frequency:0.3 dry:0.8 sglang paper guarded failsafe"


def compare(
    penalties: list[str] = typer.Argument(None, help=f"Which penalties; by default {DEFAULT}."),
    model: str = MODEL,
    prompts: int = typer.Option(128, min=1, max=256, help="How many open-ended prompts."),
    tokens: int = typer.Option(
        1024, min=1, max=100_000, help="How many tokens to write after each; the model may not end earlier."
    ),
    passages: int = typer.Option(16, min=1, max=64, help="How many passages of human text to measure the cost on."),
    problems: int = typer.Option(200, min=0, max=10_000, help="How many reasoning problems; 0 leaves them out."),
    out: Path = typer.Option(
        None, help="Write results to this file as JSON after each penalty; continue from it if it exists."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table."),
    device: str = DEVICE,
    dtype: str = DTYPE,
) -> None:
    """Compare penalties on greedy text: how often it loops, what human text costs, and how many problems are solved.

    degenerate: a unit occurs 20 times or more in a row (the paper's threshold). loops: 5 times or more, in 60 tokens or more.
    cost: how many bits per token worse the penalised model predicts human text. The reasoning problems are for the bundled
    model.
    """
    if out is not None:
        check_output(out)
    from lz_penalty.evaluation import compare as comparison
    from lz_penalty.evaluation.loading import load
    from lz_penalty.evaluation.penalties import penalty

    chosen = [penalty(name) for name in penalties or DEFAULT.split()]
    plan = comparison.Plan(model, prompts, tokens, passages, problems, dtype=dtype)
    loaded = load(model, device, dtype)
    error = Console(stderr=True)
    with Progress(*Progress.get_default_columns()[:-1], TimeRemainingColumn(), console=error) as progress:
        task = progress.add_task("", total=plan.steps * len(chosen))

        def tick(name: str, count: int) -> None:
            progress.update(task, advance=count, description=name)

        results = comparison.compare(loaded, chosen, plan, out=out, tick=tick)
    if as_json:
        print(json.dumps([asdict(result) for result in results], indent=2))
        return
    table = Table(
        "penalty", "degenerate", "loops", "different 4-grams", "human-text cost, bits", "accuracy", "tokens/s"
    )
    for result in results:
        table.add_row(
            result.penalty,
            f"{result.degenerate:.1%}",
            f"{result.loops:.1%}",
            f"{result.distinct_4:.2f}",
            "infinite" if result.human_text_cost is None else _bits(result.human_text_cost, result.human_text_interval),
            "" if result.accuracy is None else f"{result.accuracy:.1%}",
            f"{result.tokens_per_second:,.0f}",
        )
    Console().print(table)


def _bits(mean: float, interval: tuple[float, float] | None) -> str:
    return f"{mean:+.3f}" + (f" ({interval[0]:+.3f} to {interval[1]:+.3f})" if interval else "")
