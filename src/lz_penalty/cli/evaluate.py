"""`lz-penalty eval`: run a study's sweep."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from lz_penalty.cli.interrupts import again, keeps
from lz_penalty.cli.output import number_table
from lz_penalty.errors import LZPenaltyError

LOCAL = "Sweeps with transformers models"
OFFLINE = "Sweeps that vLLM runs in this process, such as real"
ENGINE = "The engine of these sweeps"
SECONDS_BETWEEN_LINES = 60
SECONDS_OF_SPEED = 600  # outputs come in batches, so that the speed of the last few is no good estimate


def evaluate(
    sweeps: list[str] = typer.Argument(
        metavar="SWEEP", help="TOML files, or the sweeps small, paper and real that come with the package."
    ),
    out: Path = typer.Option(
        None,
        metavar="FOLDER",
        help="The study's folder. With several sweeps, each gets a folder in it.",
        show_default="runs/NAME",
    ),
    resume: bool = typer.Option(
        False, "--resume", help="Go on from the results in the folder; nothing is computed twice."
    ),
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Only show what would run, how long it would take and what it would cost."
    ),
    device: str = typer.Option(
        None, metavar="NAME", help="cpu, cuda or mps instead of the sweep's device.", rich_help_panel=LOCAL
    ),
    workers: int = typer.Option(
        None, min=1, max=256, help="How many batches at a time, one core each.", rich_help_panel=LOCAL
    ),
    data: Path = typer.Option(None, metavar="FOLDER", help="The folder with the questions.", rich_help_panel=OFFLINE),
    models: Path = typer.Option(
        None,
        metavar="FOLDER",
        help="The folder with the models, each in a folder in Hugging Face's layout.",
        rich_help_panel=OFFLINE,
    ),
    only: list[str] = typer.Option(
        [],
        metavar="WORD",
        help="Only jobs whose name contains this word. May be repeated.",
        rich_help_panel=OFFLINE,
    ),
    limit: int = typer.Option(
        None, min=1, help="At most this many questions of each job, for a trial.", rich_help_panel=OFFLINE
    ),
    shard: str = typer.Option(
        None, metavar="I/N", help="This is process I of N that share a GPU and the folder.", rich_help_panel=OFFLINE
    ),
    minutes: float = typer.Option(
        None, min=0.1, help="Begin no job that would not end in this many minutes.", rich_help_panel=OFFLINE
    ),
    texts: bool = typer.Option(
        False, "--texts", help="Keep the texts of the answers, in OUT/texts.", rich_help_panel=OFFLINE
    ),
    tuning: Path = typer.Option(
        None,
        metavar="FILE",
        help="A summary of earlier tuning results; what it has is not measured again.",
        rich_help_panel=OFFLINE,
    ),
    dtype: str = typer.Option("bfloat16", metavar="NAME", help="The type of the weights.", rich_help_panel=ENGINE),
    batch: int = typer.Option(1_024, min=1, help="How many answers are written at a time.", rich_help_panel=ENGINE),
    memory: float = typer.Option(16.0, min=0.1, help="GiB for keys and values of each engine.", rich_help_panel=ENGINE),
) -> None:
    """Run a study: models, tasks, penalties and temperatures.

    Examples:
        lz-penalty eval small --dry-run
        lz-penalty eval small --out runs/small
        lz-penalty eval small --out runs/small --resume

    `lz-penalty report` shows the results. inspect-ai records most sweeps. `real` needs vLLM and no inspect-ai: vLLM runs in
    this process, every job has one result file, and the same command goes on after an interruption.

    Cells and jobs that cannot run are named and left out, and the others run; the exit code is then 1. docs/study.md
    describes the TOML file.
    """
    from lz_penalty._files import check_output_folder
    from lz_penalty.evaluation.loading import usable_device
    from lz_penalty.evaluation.study._offline.plan import is_offline
    from lz_penalty.evaluation.study.sweep import read_sweep

    options = {"data": data, "models": models, "only": tuple(only), "limit": limit, "shard": shard, "minutes": minutes}
    options |= {"texts": texts, "tuning": tuning, "dtype": dtype, "batch": batch, "memory": memory}
    _settle_data_folder()
    if device is not None:
        usable_device(device)
    if out is not None:
        check_output_folder(out)
    clean = True
    for name in sweeps:
        try:
            if is_offline(name):
                clean &= _offline(name, out, options, dry_run, len(sweeps) > 1)
                continue
            sweep = read_sweep(name)
            folder = (out / sweep.name if len(sweeps) > 1 else out) if out else Path("runs") / sweep.name
            check_output_folder(folder)
            clean &= _evaluate(sweep, folder, resume, dry_run, {"device": device, "workers": workers})
        except LZPenaltyError as error:
            if len(sweeps) == 1:
                raise
            clean = False
            print(f"lz-penalty: {error}", file=sys.stderr)
    if not clean:
        raise typer.Exit(1)


def _offline(name: str, out: Path | None, options: dict, dry_run: bool, several: bool) -> bool:
    from lz_penalty._files import check_output_folder
    from lz_penalty.cli.evaluate_offline import evaluate_offline

    folder = (out / Path(name).stem if several else out) if out else Path("runs") / Path(name).stem
    check_output_folder(folder)
    for option in ("data", "models"):
        if options[option] is None or not options[option].is_dir():
            given = f"{options[option]}: not a folder" if options[option] is not None else "is missing"
            raise LZPenaltyError(f"--{option} {given}; sweep {name} needs it. docs/study.md says what it contains.")
    return evaluate_offline(name, folder, dict(options), dry_run)


def _settle_data_folder() -> None:
    """Give inspect-ai a temporary data folder if the user's cannot be written; it stores files of running sweeps there."""
    usual = os.path.expanduser("~/.local/share")
    while os.path.dirname(usual) != usual and not os.path.exists(usual):
        usual = os.path.dirname(usual)
    if "XDG_DATA_HOME" in os.environ or (os.path.isabs(usual) and os.access(usual, os.W_OK)):
        return
    try:
        folder = tempfile.mkdtemp(prefix="lz-penalty-")
    except OSError as error:
        raise LZPenaltyError(
            f"no folder can be written ({error.strerror}): set XDG_DATA_HOME or TMPDIR to one."
        ) from None
    os.environ["XDG_DATA_HOME"] = folder
    atexit.register(shutil.rmtree, folder, ignore_errors=True)


def _evaluate(sweep, out: Path, resume: bool, dry_run: bool, changes: dict) -> bool:
    from dataclasses import replace

    from lz_penalty.evaluation.study.estimate import remaining
    from lz_penalty.evaluation.study.running import measure_costs, prepare, run_sweep

    changes = {key: value for key, value in changes.items() if value is not None}
    sweep = replace(sweep, models=tuple(replace(model, **changes) for model in sweep.models))
    console = Console(stderr=True)
    prepared = prepare(sweep)
    estimates = remaining(sweep, prepared, out)
    console.print(_plan(sweep, estimates))
    if dry_run:
        _say(console, prepared.left_out)
        return not prepared.left_out
    keeps(f"{out} contains every finished answer. Go on with: {again('--resume')}")
    with _Bar(console, sweep.name, sum(item.samples for item in estimates)) as bar:
        outcome = run_sweep(sweep, prepared, out, resume=resume, tick=bar.tick)
        problems = outcome.problems + measure_costs(sweep, out)
    console.print(f"{outcome.complete} cells are complete; now: lz-penalty report {out}", soft_wrap=True)
    _say(console, problems)
    return not problems


class _Bar(Progress):
    """A progress bar in outputs, with tokens per second; without a terminal, a line every minute."""

    def __init__(self, console: Console, name: str, total: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        super().__init__(*columns, TimeRemainingColumn(), console=console, speed_estimate_period=SECONDS_OF_SPEED)
        self.name, self.written, self.began = name, 0, time.monotonic()
        self.bar = self.add_task(name, total=total)
        self.said = self.began

    def tick(self, tokens: int) -> None:
        """Count one output."""
        now = time.monotonic()
        self.written += tokens
        speed = f"{self.name} {self.written / max(1e-9, now - self.began):,.0f} tokens/s"
        self.update(self.bar, advance=1, description=speed)
        if not self.console.is_terminal and now - self.said > SECONDS_BETWEEN_LINES:
            self.said = now
            task = self.tasks[0]
            left = _time((now - self.began) / task.completed * ((task.total or 0) - task.completed))
            line = f"{task.completed:,.0f} of {task.total:,.0f} outputs, {speed}, about {left} left"
            self.console.print(line, soft_wrap=True)


def _plan(sweep, estimates) -> Table:
    names = ("cells", "recorded", "outputs\nto write", "tokens", "time", "cost")
    table = number_table("model", *names, title=sweep.name)
    for item in estimates:
        table.add_row(
            item.model,
            str(item.cells),
            str(item.done),
            f"{item.samples:,}",
            f"{'' if item.measured else 'at most '}{item.tokens:,.0f}",
            "unknown" if item.seconds is None else f"{'about' if item.measured else 'at most'} {_time(item.seconds)}",
            "" if item.cost is None else f"{item.cost:,.2f}",
        )
    return table


def _time(seconds: float) -> str:
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:,.0f} h"


def _say(console: Console, problems: list[str]) -> None:
    for problem in problems:
        console.print(f"left out or failed: {problem}", style="yellow", markup=False, highlight=False, soft_wrap=True)
