"""`lz-penalty cost`: measure what penalties cost in text that is as it should be."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from lz_penalty._files import check_output
from lz_penalty.cli.options import DEVICE, DTYPE, MODEL

if TYPE_CHECKING:
    from lz_penalty.evaluation.compare import Harm

DEFAULT = "none repetition:1.2 frequency:0.3 dry:0.8 sglang paper guarded guarded,include_prompt=0 failsafe"


def cost(
    penalties: list[str] = typer.Argument(None, help=f"Which penalties; by default {DEFAULT}."),
    model: str = MODEL,
    passages: int = typer.Option(64, min=1, max=64, help="How many passages of human text."),
    tasks: int = typer.Option(4, min=1, max=1_000, help="How many copying tasks of each kind."),
    out: Path = typer.Option(None, help="Write the results to this file, as JSON."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of tables."),
    device: str = DEVICE,
    dtype: str = DTYPE,
) -> None:
    """Measure what penalties cost on human text and on copies, in bits. Nothing is generated.

    human text: how many bits per token worse the penalised model predicts it, with a 95 % interval over passages.
    copies: the right answers of copying tasks (a quotation, edited code, a table, ...) after their prompts. stays: share
    of tokens at which greedy decoding without the penalty writes the copy. leaves: share of tokens at which it would, and
    does not because of the penalty. spoilt: share of tasks in which that happens.
    """
    if out is not None:
        check_output(out)
    from lz_penalty.evaluation.compare import Plan, measure_harm
    from lz_penalty.evaluation.loading import load
    from lz_penalty.evaluation.penalties import penalty
    from lz_penalty.evaluation.results_file import write_results

    chosen = [penalty(name) for name in penalties or DEFAULT.split()]
    plan = Plan(model, passages=passages, tasks=tasks, dtype=dtype)
    loaded = load(model, device, dtype)
    harms = []
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=plan.steps * len(chosen))
        for one in chosen:
            progress.update(task, description=one.name)
            harms.append(measure_harm(loaded, one, plan, lambda count: progress.advance(task, count)))
    results = [harm.to_dict() for harm in harms]
    if out:
        write_results(out, asdict(plan), results)
    if as_json:
        print(json.dumps(results, indent=2))
    else:
        _show(harms)


def _show(harms: list[Harm]) -> None:
    table = Table("penalty", "human text", "copies", "stays", "leaves", "spoilt", title="bits per token; shares")
    for harm in harms:
        text, copies = harm.human_text, harm.copies[-1]
        table.add_row(
            harm.penalty,
            f"{_bits(text.mean)} ({_bits(text.low)} to {_bits(text.high)})",
            _bits(copies.cost.mean),
            *(f"{share:.1%}" for share in (copies.stays, copies.leaves, copies.spoilt)),
        )
    kinds = [one.kind for one in harms[0].copies]
    by_kind = Table("leaves the copy", *kinds)
    for harm in harms:
        by_kind.add_row(harm.penalty, *(f"{one.leaves:.1%}" for one in harm.copies))
    for shown in (table, by_kind):
        Console().print(shown)


def _bits(value: float) -> str:
    return f"{value:+.3f}" if value < 1_000 else "over 1,000"
