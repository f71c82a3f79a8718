"""`lz-penalty detect`: find loops in many stored texts."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskProgressColumn, TimeRemainingColumn

from lz_penalty._checks import real
from lz_penalty._files import check_output, replacing
from lz_penalty.cli.detect_output import show
from lz_penalty.cli.interrupts import again, keeps
from lz_penalty.cli.options import ABOUT_OUTPUT, JSON
from lz_penalty.cli.output import clean, print_problem
from lz_penalty.errors import LZPenaltyError, bad_value

if TYPE_CHECKING:
    from lz_penalty.detection.judge import Judge

LOOPS, UNREAD = 1, 3  # exit codes
WHAT = "What a loop is"
HOW = "How files are read"
JUDGE = "A language model as judge"


def detect(
    paths: list[str] = typer.Argument(
        ...,
        metavar="FILE",
        help="Text, JSON lines (.jsonl) and Parquet files, also .gz, .bz2, .xz, .zst; - is standard input.",
    ),
    criterion: list[str] = typer.Option(
        None,
        "--criterion",
        "-c",
        metavar="NAME",
        help="CRITERIA. May be repeated.",
        show_default="DEFAULT_CRITERIA",
        rich_help_panel=WHAT,
    ),
    capped: bool = typer.Option(
        False,
        "--capped",
        help="A limit on tokens cut off all texts. A finish_reason beside a text says so for this text.",
        rich_help_panel=WHAT,
    ),
    min_copies: float = typer.Option(None, help="tandem: the least number of adjacent copies.", rich_help_panel=WHAT),
    min_length: int = typer.Option(
        None, help="tandem: the least number of characters of all copies together.", rich_help_panel=WHAT
    ),
    anywhere: bool = typer.Option(
        False, "--anywhere", help="tandem, counter, edited: not only at the end of a text.", rich_help_panel=WHAT
    ),
    format: str = typer.Option(
        "auto",
        metavar="NAME",
        help="text (one document per file), jsonl, parquet, or auto (by file name).",
        rich_help_panel=HOW,
    ),
    field: str = typer.Option(
        None,
        "--field",
        "-f",
        metavar="FIELD",
        help="The field or column with the text, such as choices.0.message.content. Files that are not Parquet are then "
        "JSON lines.",
        show_default="text",
        rich_help_panel=HOW,
    ),
    max_record: int = typer.Option(
        None, help="The largest document in bytes.", show_default="8 MiB", rich_help_panel=HOW
    ),
    workers: int = typer.Option(
        1, "--workers", "-w", help="How many processes examine documents.", rich_help_panel=HOW
    ),
    ray: bool = typer.Option(
        False, "--ray", help="Use Ray Data on the cluster at RAY_ADDRESS, or on this machine.", rich_help_panel=HOW
    ),
    ray_address: str = typer.Option(
        None, metavar="ADDRESS", help="Use Ray Data on the cluster at this address.", rich_help_panel=HOW
    ),
    judge_model: str = typer.Option(
        None, help="Also ask this model; the key comes from the environment.", rich_help_panel=JUDGE
    ),
    judge_url: str = typer.Option(
        None,
        metavar="URL",
        help="An OpenAI-compatible endpoint, such as http://localhost:8000/v1.",
        rich_help_panel=JUDGE,
    ),
    judge: str = typer.Option(
        "flagged", metavar="NAME", help="Which documents the judge gets: flagged or all.", rich_help_panel=JUDGE
    ),
    judge_key_variable: str = typer.Option(
        "OPENAI_API_KEY", metavar="NAME", help="The environment variable with the key.", rich_help_panel=JUDGE
    ),
    judge_cache: Path = typer.Option(None, help="Store the judge's answers in this file.", rich_help_panel=JUDGE),
    judge_prices: str = typer.Option(
        None, metavar="IN,OUT", help="Prices of a million tokens, to report the cost.", rich_help_panel=JUDGE
    ),
    judge_concurrency: int = typer.Option(8, help="How many requests are sent at a time.", rich_help_panel=JUDGE),
    worst: int = typer.Option(
        5, min=0, max=1_000, help="How many of the worst documents to show.", rich_help_panel=ABOUT_OUTPUT
    ),
    out: Path = typer.Option(
        None,
        "--out",
        "-o",
        help="Write flagged documents and problems to this file, as JSON lines.",
        rich_help_panel=ABOUT_OUTPUT,
    ),
    every: bool = typer.Option(False, "--every", help="Write every document to --out.", rich_help_panel=ABOUT_OUTPUT),
    as_json: bool = JSON,
    fail_if_any: bool = typer.Option(
        False, "--fail-if-any", help="Exit with code 1 if there is a loop.", rich_help_panel=ABOUT_OUTPUT
    ),
    fail_over: float = typer.Option(
        None,
        min=0.0,
        max=1.0,
        metavar="SHARE",
        help="Exit with code 1 if more than this share are loops.",
        rich_help_panel=ABOUT_OUTPUT,
    ),
) -> None:
    """Find the texts that loop, in files of any size.

    Examples:
        yes "I am sorry." | head -n 200 | lz-penalty detect -
        lz-penalty detect outputs.jsonl --field response --out loops.jsonl
        lz-penalty detect capped/*.txt --capped --fail-if-any

    Exit codes: 0 for success; 1 because of --fail-if-any or --fail-over (with a judge, only loops that both find count);
    2 for invalid arguments; 3 if a document could not be read or judged: it is named, and all others are examined.
    """
    keeps(_kept(out, judge_cache))
    from lz_penalty.detection._records import Problem, Reading
    from lz_penalty.detection._verdict import Limits
    from lz_penalty.detection.scan import Scan, Summary, judged, scan

    if judge not in ("flagged", "all"):
        raise bad_value("judge", judge, "flagged or all")
    if judge != "flagged" and judge_model is None:
        raise LZPenaltyError(f"--judge {judge}: needs --judge-model.")
    if fail_over is not None:
        real(0, 1)("--fail-over", fail_over)
    if every and out is None:
        raise LZPenaltyError("--every: needs --out.")
    client = _judge(judge_model, judge_url, judge_key_variable, judge_cache, judge_prices, judge_concurrency)
    limits = Limits(**_given(min_copies=min_copies, min_length=min_length), at_end=not anywhere)
    reading = Reading(format, **_given(field=field, max_record=max_record), capped=capped)
    settings = Scan(
        tuple(dict.fromkeys(criterion)) if criterion else None, limits, reading, judge if client else "none"
    )
    if (ray or ray_address) and workers != 1:
        raise LZPenaltyError("--workers and --ray cannot be used together: Ray has its own workers. Choose one.")
    summary, hint = Summary(settings.names, worst), ""
    screen = Console(stderr=True)
    with _writing(out, paths) as write, _progress(paths, screen) as (progress, tick):
        if ray or ray_address:
            from lz_penalty.detection._ray_scan import scan_ray

            results = scan_ray(paths, settings, address=ray_address, tick=tick)
        else:
            results = scan(paths, settings, workers=workers, tick=tick)
        for result in judged(results, client) if client else results:
            summary.add(result)
            number = summary.problems + summary.judged["unknown"]
            if isinstance(result, Problem):
                print_problem(progress.console, number, result)
                write(asdict(result))
                continue
            if result.like_json and not hint:
                hint = _hint(result.source)
            if result.judgement is not None and result.judgement.error is not None:
                problem = Problem(result.source, result.line, f"not judged: {result.judgement.error}")
                print_problem(progress.console, number, problem)
            if every or result.flagged or (result.judgement and result.judgement.loop is not False):
                write(result.to_dict())
    if hint:
        screen.print(clean(hint), soft_wrap=True)
    show(summary, client, as_json)
    loops = summary.dual["loop"] if client else summary.flagged
    if (fail_if_any and loops) or (fail_over is not None and summary.share(loops) > fail_over):
        raise typer.Exit(LOOPS)
    if summary.problems or summary.judged["unknown"]:
        raise typer.Exit(UNREAD)


def _kept(out: Path | None, cache: Path | None) -> str:
    """Return what Ctrl-C prints."""
    kept = ["Nothing was kept." if out is None else f"{out} is unchanged: it is written at the end."]
    if cache is not None:
        kept = (
            [f"{cache} contains the judge's answers."]
            if out is None
            else [*kept, f"{cache} contains the judge's answers."]
        )
    return " ".join([*kept, f"Begin again with: {again()}"])


def _hint(source: str) -> str:
    """Return what to do if this file of JSON lines was read as one text."""
    return (
        f"lz-penalty: {source} was read as one text, and begins as JSON does. If it has JSON lines, add --field FIELD; if "
        "it is one text, --format text."
    )


def _given(**options: Any) -> dict[str, Any]:
    """Return the options that were given; the classes that take them define the defaults."""
    return {name: value for name, value in options.items() if value is not None}


def _judge(
    model: str | None, url: str | None, key_variable: str, cache: Path | None, prices: str | None, concurrency: int
) -> Judge | None:
    from lz_penalty.detection.judge import Judge

    if model is None:
        if url or cache or prices:
            raise LZPenaltyError("--judge-url, --judge-cache and --judge-prices need --judge-model.")
        return None
    try:
        pair = None if prices is None else tuple(float(price) for price in prices.split(","))
    except ValueError:
        raise bad_value("--judge-prices", prices, "two numbers, such as 2.5,10") from None
    settings: dict[str, Any] = {"cache": cache, "prices": pair, "concurrency": concurrency}
    return Judge(model, url, key_variable=key_variable, **settings)


@contextmanager
def _writing(out: Path | None, inputs: Iterable[str]) -> Iterator[Any]:
    """Yield a function that writes a row. The file appears at the end, or not at all after an error."""
    if out is None:
        yield lambda row: None
        return
    check_output(out)
    if any(os.path.exists(path) and os.path.exists(out) and os.path.samefile(path, out) for path in inputs):
        raise LZPenaltyError(f"--out {out}: is one of the input files; give another file.")
    with replacing(out) as write:
        yield lambda row: write(json.dumps(row) + "\n")


@contextmanager
def _progress(paths: list[str], screen: Console) -> Iterator[tuple[Progress, Any]]:
    """Yield a progress bar over the bytes of all files, and the function that advances it."""
    sizes = [os.path.getsize(path) for path in paths if os.path.isfile(path)]
    columns = (BarColumn(), TaskProgressColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, disable=not screen.is_terminal, transient=True) as progress:
        task = progress.add_task("", total=sum(sizes) if "-" not in paths else None)
        yield progress, lambda count: progress.advance(task, count)
