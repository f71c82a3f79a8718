"""Run the fuzzing, or parts of it: `python -m tests.fuzzing [PART ...]`.

Each group of parts runs in its own process, in the environment of its engine, two at a time. The exit code is 1 if there is
a finding.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.fuzzing import running, texts
from tests.fuzzing.running import Part
from tests.support import ROOT

AT_ONCE = 2  # processes
EVERY = 0.3  # seconds between two reports of progress
# One thread, because its time is measured. Freed memory is returned at once, so that the growth of each case is visible.
ALONE = {
    "OMP_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "MALLOC_MMAP_THRESHOLD_": "131072",
    "MALLOC_TRIM_THRESHOLD_": "131072",
    "HF_HUB_OFFLINE": "1",
}


def _op(name: str) -> Part:
    from tests.fuzzing import op_cases

    return op_cases.part(name)


def _requests(name: str) -> Part:
    from tests.fuzzing import plugins

    return plugins.part(name)


def _histories(name: str) -> Part:
    from tests.fuzzing import histories

    return histories.part(name)


class Group(NamedTuple):
    """Parts that run in one process.

    Attributes:
        make: makes a part from its name.
        names: the names of the parts, without the first word.
        python: the command line option that names the interpreter.
        folders: further folders to import from.
        environment: further environment variables.
    """

    make: Callable[[str], Part]
    names: tuple[str, ...]
    python: str = "python"
    folders: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


_CPU_ENGINE = (("SGLANG_USE_CPU_ENGINE", "1"),)
# Each with the first word of its parts' names; the groups that take longest come first.
GROUPS: tuple[tuple[str, Group], ...] = (
    ("histories", Group(_histories, ("vllm",), "vllm")),
    ("histories", Group(_histories, ("sglang",))),
    ("requests", Group(_requests, ("transformers",))),
    ("requests", Group(_requests, ("vllm",), "vllm")),
    ("requests", Group(_requests, ("sglang",), "sglang", ("tests/engines/sglang/sglang_on_cpu",), _CPU_ENGINE)),
    ("requests", Group(_requests, ("llama",), "llama")),
    ("op", Group(_op, ("numpy", "numba", "torch", "c"))),
    ("detection", Group(texts.part, tuple(texts.FUNCTIONS))),
    ("op", Group(_op, ("triton",), environment=(("TRITON_INTERPRET", "1"),))),
)


def main() -> int:
    """Run the parts that the command line names."""
    options = _options()
    if options.lines_to is not None:
        return _child(options)
    console = Console(stderr=True)
    chosen = [(group, names) for first, group in GROUPS if (names := _chosen(first, group, options.parts))]
    unknown = {one for one in options.parts if not any(_matches(name, one) for _, names in chosen for name in names)}
    if unknown:
        console.print(f"unknown: {', '.join(sorted(unknown))}. Known: {', '.join(_all_names())}")
        return 2
    begin = time.perf_counter()
    results = _run_all(chosen, options, console)
    _show(results, options.seed, time.perf_counter() - begin)
    return int(any(result["findings"] for result in results))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="fuzzing", description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", help="such as op, op-numba, requests-vllm (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, help="cases of each part (default: a full run)")
    parser.add_argument("--case", type=int, help="run only the case of this number")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the main environment")
    for engine, folder in (("vllm", ".venv-vllm"), ("sglang", ".venv-sglang"), ("llama", ".venv-llama-cpp")):
        parser.add_argument(f"--{engine}", default=str(ROOT / folder / "bin" / "python"), help="interpreter")
    parser.add_argument("--lines-to", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def _matches(name: str, asked: str) -> bool:
    return name == asked or name.startswith(asked + "-")


def _chosen(first: str, group: Group, asked: list[str]) -> list[str]:
    names = [f"{first}-{name}" for name in group.names]
    return [name for name in names if not asked or any(_matches(name, one) for one in asked)]


def _all_names() -> list[str]:
    return [f"{first}-{name}" for first, group in GROUPS for name in group.names]


# ---------------------------------------------------------------- one process


def _child(options: argparse.Namespace) -> int:
    """Run these parts in this process, and report to the parent: one JSON object per line."""
    with os.fdopen(options.lines_to, "w", buffering=1) as lines:
        for name in options.parts:
            for result in _part(name, options, lines):
                print(json.dumps(result), file=lines)
    return 0


def _part(name: str, options: argparse.Namespace, lines: IO[str]) -> Iterator[dict[str, Any]]:
    first, _, rest = name.partition("-")
    part = next(group for word, group in GROUPS if word == first and rest in group.names).make(rest)
    numbers = range(min(part.cases, options.cases or part.cases))
    if options.case is not None:
        numbers = range(options.case, options.case + 1)
    yield {"name": name, "total": len(numbers)}
    last = [0.0]

    def tick(done: int) -> None:
        now = time.monotonic()
        if now - last[0] > EVERY:
            last[0] = now
            print(json.dumps({"name": name, "done": done}), file=lines)

    yield {"name": name, "result": running.fuzz(name, part, options.seed, numbers, tick).to_dict()}


# ---------------------------------------------------------------- all of them


def _run_all(chosen: list[tuple[Group, list[str]]], options: argparse.Namespace, console: Console) -> list[Any]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        tasks = {name: progress.add_task(name, total=None, start=False) for _, names in chosen for name in names}

        def follow(group: Group, names: list[str]) -> list[Any]:
            return _run(group, names, options, progress, tasks)

        with ThreadPoolExecutor(AT_ONCE) as pool:
            return [one for results in pool.map(follow, *zip(*chosen, strict=True)) for one in results]


def _run(group: Group, names: list[str], options: argparse.Namespace, progress: Progress, tasks: Any) -> list[Any]:
    """Run a group in its own process; return one result per part."""
    results: dict[str, Any] = {}
    reading, writing = os.pipe()
    command = [getattr(options, group.python), "-m", "tests.fuzzing", *names]
    command += ["--seed", str(options.seed), "--lines-to", str(writing)]
    for option in ("cases", "case"):
        if getattr(options, option) is not None:
            command += [f"--{option}", str(getattr(options, option))]
    folders = [str(ROOT / folder) for folder in ("src", "", *group.folders)]
    environment = os.environ | ALONE | {"PYTHONPATH": os.pathsep.join(folders)} | dict(group.environment)
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, env=environment, cwd=ROOT, stdout=log, stderr=log, pass_fds=[writing], stdin=subprocess.DEVNULL
        )
        os.close(writing)
        with os.fdopen(reading) as lines:
            for line in lines:
                told = json.loads(line)
                _note(told, progress, tasks[told["name"]])
                if "result" in told:
                    results[told["name"]] = told["result"]
        code = process.wait()
        log.seek(0)
        end = log.read().decode(errors="replace")[-2000:]
    return [results.get(name) or _ended(name, code, end) for name in names]


def _note(told: dict[str, Any], progress: Progress, task: Any) -> None:
    if "total" in told:
        progress.start_task(task)
        progress.update(task, total=told["total"])
    elif "done" in told:
        progress.update(task, completed=told["done"])
    else:
        progress.update(task, completed=told["result"]["cases"])
        progress.stop_task(task)


def _ended(name: str, code: int, log: str) -> dict[str, Any]:
    """Return the result of a part whose process ended early, which is a finding."""
    result = running.Result(name, 0.0, 0.0, findings=1)
    result.shown.append((-1, f"the process ended with code {code}: {log}"))
    return result.to_dict()


def _show(results: list[dict[str, Any]], seed: int, seconds: float) -> None:
    table = Table(title=f"seed {seed}, {seconds:.0f} s")
    table.add_column("part", no_wrap=True)
    for column in ("cases", "findings", "worst ms (bound)", "in case", "worst MB (bound)", "in case", "s"):
        table.add_column(column, justify="right")
    for one in results:
        table.add_row(
            one["name"],
            f"{one['cases']:,}",
            str(one["findings"]),
            f"{one['worst_seconds'] * 1e3:.1f} ({one['seconds'] * 1e3:,.0f})",
            str(one["slowest"]),
            f"{one['worst_megabytes']:.1f} ({one['megabytes']:,.0f})",
            str(one["largest"]),
            f"{one['total_seconds']:.0f}",
        )
    console = Console() if sys.stdout.isatty() else Console(width=120)
    console.print(table)
    for one in results:
        for number, text in one["shown"]:
            again = f"{_shown(sys.executable)} -m tests.fuzzing {one['name']} --seed {seed}"
            command = again if number < 0 else f"{again} --case {number}"
            print(f"\n{one['name']}, case {number}: {text.encode('utf-8', 'backslashreplace').decode()}\n  {command}")
        if one["findings"] > len(one["shown"]):
            print(f"\n{one['name']}: {one['findings'] - len(one['shown'])} more")


def _shown(path: str) -> str:
    """Return a path relative to the root of the project, if it is inside."""
    return os.path.relpath(path, ROOT) if Path(path).is_relative_to(ROOT) else path


if __name__ == "__main__":
    sys.exit(main())
