"""`lz-penalty eval` for sweeps that vLLM runs in this process, such as `real`."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from lz_penalty.cli.interrupts import again, keeps
from lz_penalty.errors import LZPenaltyError, show

WIDTH = 140
TERMINATED = 143  # the usual exit code after SIGTERM


def evaluate_offline(name: str, out: Path, given: dict[str, Any], dry_run: bool) -> bool:
    """Run a sweep, or show what it takes; return whether nothing was left out."""
    from lz_penalty.evaluation.study._offline.plan import read_plan
    from lz_penalty.evaluation.study._offline.running import Options, chosen, run_plan

    plan = read_plan(name)
    shard, shards = _shard(given.pop("shard"))
    options = Options(out=out, shard=shard, shards=shards, **given)
    if not chosen(plan, options.only):
        raise LZPenaltyError(
            f"--only {' '.join(options.only)}: no job has such a name; --dry-run without it lists all."
        )
    console = Console(stderr=True)
    if dry_run:
        return _show(console, plan, options)
    _keep_sweep(name, out)
    keeps(f"{out} contains every finished job. Go on with: {again()}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))  # so that the engine ends too, and frees its memory
    outcome = run_plan(plan, options, lambda line: console.print(line, highlight=False, soft_wrap=True))
    for problem in outcome.problems:
        console.print(f"left out or failed: {problem}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    more = f"{outcome.left} jobs are left; run the same command again" if outcome.left else "no job is left"
    console.print(
        f"{len(outcome.done)} jobs done, {more}; then: lz-penalty report {out}", highlight=False, soft_wrap=True
    )
    return not outcome.problems


def _keep_sweep(name: str, out: Path) -> None:
    """Write the sweep beside its results, where the report reads it; raise if the folder has results of another sweep."""
    from lz_penalty._files import write_file
    from lz_penalty.evaluation.study.sweep import sweep_text

    kept, text = out / "sweep.toml", sweep_text(name)
    if kept.exists() and kept.read_text(encoding="utf-8") != text:
        raise LZPenaltyError(f"--out {out}: has results of another sweep ({kept}). Give another folder.")
    out.mkdir(parents=True, exist_ok=True)
    write_file(kept, text)


def _shard(text: str | None) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,3})/(\d{1,3})", text or "1/1", re.ASCII)
    number, count = map(int, found.groups()) if found else (0, 0)
    if not 1 <= number <= count:
        raise LZPenaltyError(f"--shard {show(text)}: must be I/N with I from 1 to N, such as 1/4.")
    return number, count


def _show(console: Console, plan: Any, options: Any) -> bool:
    """Print what each job takes; return whether all can run here."""
    from lz_penalty.evaluation.study._offline.estimate import WAITS, estimates
    from lz_penalty.evaluation.study._offline.results import Folder
    from lz_penalty.evaluation.study._offline.running import chosen

    sitting = options.minutes or plan.speed.sitting
    given = chosen(plan, options.only)
    found = estimates(
        plan,
        given,
        Folder(options.out, options.tuning),
        options.data,
        options.models,
        options.limit,
        sitting * options.shards,
    )
    table = Table(
        "job", "settings", "answers", "tokens", "minutes", f"sitting of {sitting:g} min", "state", title=plan.name
    )
    problems = []
    for one in found:
        table.add_row(
            one.job.name,
            str(one.settings),
            f"{one.answers:,}",
            f"{one.tokens:,.0f}",
            f"{one.seconds / 60:.1f}",
            str(one.sitting or ""),
            one.state if one.state in ("", "done", WAITS) else "cannot run",
        )
        if one.state not in ("", "done", WAITS) and one.state not in problems:
            problems.append(one.state)
    if not console.is_terminal:
        console.width = max(console.width, WIDTH)  # a log has no width; a narrow table would break words
    console.print(table)
    left = [one for one in found if one.sitting]
    starts = len({(one.sitting, one.job.model.name) for one in left}) * plan.speed.start_seconds
    minutes = (sum(one.seconds for one in left) + starts) / 60
    answers, tokens = sum(one.answers for one in left), sum(one.tokens for one in left)
    shared = (
        f", {minutes / options.shards:.0f} with {options.shards} engines if the GPU keeps up"
        if options.shards > 1
        else ""
    )
    console.print(
        f"{len(left)} jobs to do: {answers:,} answers, {tokens / 1e6:,.1f} million tokens, {minutes:.0f} minutes with one "
        f"engine and its starts{shared}. Planned: at most {plan.speed.minutes:g}.",
        highlight=False,
        soft_wrap=True,
    )
    for problem in problems:
        console.print(f"cannot run here: {problem}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    return not problems
