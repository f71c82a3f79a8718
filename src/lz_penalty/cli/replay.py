"""`lz-penalty replay`: one's own stored requests, without and with the penalty."""

from __future__ import annotations

import itertools
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.progress import Progress

from lz_penalty._files import check_output, read_json
from lz_penalty.cli.interrupts import again, keeps
from lz_penalty.cli.options import ABOUT_OUTPUT, JSON
from lz_penalty.cli.output import number_table, print_problem
from lz_penalty.errors import LZPenaltyError, bad_value

if TYPE_CHECKING:
    from lz_penalty.detection._records import Problem
    from lz_penalty.evaluation.replay.pairs import Summary

UNREAD = 3  # exit code
MAX_POLICY = 1 << 20  # bytes of a policy's file
CHANGES = "What is sent"
RIGHT = "What counts as a loop, and as right"
SENDING = "How it is sent"


def replay(
    log: str = typer.Argument(
        ..., metavar="LOG.jsonl", help="Stored requests, one JSON object per line; also .gz, .bz2, .xz, .zst."
    ),
    endpoint: str = typer.Option(
        ..., "--endpoint", "-e", metavar="URL", help="OpenAI-compatible server, such as http://localhost:8000/v1."
    ),
    style: str = typer.Option(
        "flat", metavar="NAME", help="Where the server reads lz_* fields: flat (our own servers), vllm or sglang."
    ),
    penalty: str = typer.Option(
        None,
        "--penalty",
        "-p",
        metavar="PENALTY",
        help="An LZ penalty, as in `generate`: paper:0.3, ...",
        show_default="guarded",
    ),
    policy: Path = typer.Option(
        None, metavar="FILE", help="A JSON file with lz_* fields instead: a policy, a ladder, or both."
    ),
    model: str = typer.Option(
        None, "--model", "-m", help="Ask this model instead of the requests' own.", rich_help_panel=CHANGES
    ),
    change: list[str] = typer.Option(
        [],
        "--set",
        metavar="NAME=VALUE",
        help="Replace a field: temperature=0. May be repeated.",
        rich_help_panel=CHANGES,
    ),
    request: str = typer.Option(
        None,
        metavar="FIELD",
        help="Where a line contains the request, such as data.request.",
        show_default="found automatically",
        rich_help_panel=CHANGES,
    ),
    criterion: list[str] = typer.Option(
        ["tandem"],
        "--criterion",
        "-c",
        metavar="NAME",
        help="The criterion for a loop, as in `detect`. May be repeated.",
        rich_help_panel=RIGHT,
    ),
    expected: str = typer.Option(
        None,
        metavar="FIELD",
        help="Where a line contains the expected answer, such as answer.",
        rich_help_panel=RIGHT,
    ),
    compare: str = typer.Option(
        "exact",
        metavar="NAME",
        help="How answers are compared with the expected one: exact, contains, number (the last number).",
        rich_help_panel=RIGHT,
    ),
    pattern: str = typer.Option(
        None,
        help="A regular expression whose last match is the answer: 'Answer: (.*)'.",
        rich_help_panel=RIGHT,
    ),
    concurrency: int = typer.Option(8, help="How many requests are sent at a time.", rich_help_panel=SENDING),
    retries: int = typer.Option(
        4, help="How often a request is sent again after 429, 5xx or a lost connection.", rich_help_panel=SENDING
    ),
    timeout: float = typer.Option(600.0, help="Seconds that one answer may take.", rich_help_panel=SENDING),
    key_variable: str = typer.Option(
        "OPENAI_API_KEY",
        metavar="NAME",
        help="The environment variable with the server's key.",
        rich_help_panel=SENDING,
    ),
    probe: bool = typer.Option(
        True, "--probe/--no-probe", help="Check first that the server has the penalty.", rich_help_panel=SENDING
    ),
    out: Path = typer.Option(
        None,
        "--out",
        "-o",
        help="Store all answers in this file, as JSON lines; go on from it if it exists.",
        rich_help_panel=ABOUT_OUTPUT,
    ),
    as_json: bool = JSON,
) -> None:
    """Send stored requests again, without and with the penalty.

    Examples:
        lz-penalty replay requests.jsonl -e http://localhost:8000/v1 \\
            --style vllm --set temperature=0 --out replayed.jsonl
        lz-penalty replay requests.jsonl -e http://localhost:8000/v1 \\
            --expected answer --compare number
        lz-penalty replay requests.jsonl -e http://localhost:8000/v1 \\
            --style vllm --policy policy.json

    It counts loops broken, tokens saved, answers changed and, with --expected or --pattern, answers lost and won. Use --set
    temperature=0 to exclude chance.

    Exit codes: 0 for success; 2 for wrong arguments; 3 if some requests could not be replayed: they are named, and the
    others go on.
    """
    keeps(
        f"{out} contains every answer that came. Go on with: {again()}"
        if out
        else "Nothing was kept: --out FILE keeps every answer as it comes."
    )
    from lz_penalty.evaluation.measures import Checker
    from lz_penalty.evaluation.replay.log import Log, count
    from lz_penalty.evaluation.replay.results import Results
    from lz_penalty.evaluation.replay.running import Replay
    from lz_penalty.evaluation.replay.running import replay as run
    from lz_penalty.evaluation.replay.sending import Endpoint

    if compare != "exact" and not expected:
        raise LZPenaltyError(f"--compare {compare}: needs --expected.")
    checker = Checker(compare, pattern, bool(expected)) if expected or pattern else None
    fields = _fields(penalty, policy)
    what = Replay(
        Log(request, expected, model, _changes(change)), fields, style, concurrency, tuple(criterion), checker, probe
    )
    if not os.path.isfile(log):
        raise LZPenaltyError(f"{log}: file not found.")
    lines = count(log, what.log)
    server = Endpoint(endpoint, key_variable=key_variable, timeout=timeout, retries=retries)
    screen = Console(stderr=True)
    with _kept(out, log) as path, Progress(console=screen, disable=not screen.is_terminal, transient=True) as progress:
        results = Results(path, what.settings)
        task = progress.add_task("", total=lines)
        numbers = itertools.count(1)

        def report(problem: Problem) -> None:
            print_problem(progress.console, next(numbers), problem)

        try:
            summary = run(log, what, server, results, tick=lambda: progress.advance(task), report=report)
        finally:
            results.close()
    if as_json:
        print(json.dumps(summary.to_dict(), indent=2))
    else:
        _show(summary, checker is not None)
    if summary.problems:
        raise typer.Exit(UNREAD)


def _fields(penalty: str | None, policy: Path | None) -> dict[str, Any]:
    """Return the `lz_*` fields of the penalty or of the policy's file."""
    if policy is None:
        from lz_penalty.evaluation.penalties import penalty as named

        fields = named(penalty or "guarded").lz_fields
        if fields is None:
            raise bad_value("--penalty", penalty, "an LZ penalty: a server knows no other by these fields")
        return fields
    if penalty is not None:
        raise LZPenaltyError("--penalty and --policy: give one of them; a policy's file can contain lz_preset.")
    fields = read_json(policy, MAX_POLICY, "--policy")
    if not isinstance(fields, dict):
        raise bad_value(f"--policy {policy}", fields, 'an object of lz_* fields, such as {"lz_policy": "default"}')
    return fields


def _changes(given: list[str]) -> dict[str, Any]:
    changes = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise bad_value("--set", one, "NAME=VALUE, such as temperature=0")
        try:
            changes[name] = json.loads(value)
        except RecursionError:
            raise bad_value("--set", one, "nested less deep") from None
        except ValueError:
            changes[name] = value
    return changes


@contextmanager
def _kept(out: Path | None, log: str) -> Iterator[Path]:
    """Yield the file for the answers: the given one, else a temporary one."""
    if out is not None:
        check_output(out)
        if out.exists() and os.path.samefile(out, log):
            raise LZPenaltyError(f"--out {out}: is the log itself; give another.")
        yield out
        return
    try:
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    except OSError as error:
        raise LZPenaltyError(f"there is no folder for temporary files ({error.strerror}): give --out.") from None
    with folder as name:
        yield Path(name, "answers.jsonl")


def _show(summary: Summary, checked: bool) -> None:
    console = Console()
    console.print(f"requests: {summary.replayed:,} replayed, {summary.problems:,} not")
    without, penalised, total = summary.without, summary.with_penalty, max(1, summary.replayed)
    table = number_table("", "without", "with")
    table.add_row("answers that loop", _share(without.loops, total), _share(penalised.loops, total))
    table.add_row("  loops broken", "", f"{summary.loops_broken:,}")
    table.add_row("  new loops", "", f"{summary.loops_made:,}")
    table.add_row("characters wasted", f"{without.wasted:,}", f"{penalised.wasted:,}")
    table.add_row("cut off", _share(without.cut_off, total), _share(penalised.cut_off, total))
    if summary.counted:
        table.add_row("tokens", f"{without.tokens:,}", f"{penalised.tokens:,}")
        table.add_row("  saved", "", f"{summary.tokens_saved:,} ({summary.tokens_saved / max(1, without.tokens):.1%})")
    if summary.checked:
        table.add_row("right", *(_share(side.right, summary.checked) for side in (without, penalised)))
        table.add_row("  lost", "", f"{summary.lost:,}")
        table.add_row("  won", "", f"{summary.won:,}")
        if summary.p_value is not None:
            table.add_row("  p", "", f"{summary.p_value:.2g}")
    table.add_row("answers changed", "", _share(summary.changed, total))
    console.print(table)
    if summary.counted < summary.replayed:
        console.print(f"tokens are of the {summary.counted:,} requests whose answers the server counted.")
    if checked and summary.checked < summary.replayed:
        console.print(f"{summary.checked:,} answers could be checked: the others have nothing to compare with.")
    if summary.sampled:
        console.print(
            f"{summary.sampled:,} requests sample: their answers may differ by chance alone. --set temperature=0 excludes that."
        )


def _share(count: int, total: int) -> str:
    return f"{count:,} ({count / total:.1%})"
