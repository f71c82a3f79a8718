"""Run `lz-penalty` in a process of its own without waiting for its imports.

A server process imports torch, transformers and the commands once; each run is a fork of it, with its own arguments,
standard streams, environment, working folder and exit code. In `make test-deep` each run starts Python instead. Tests of
what happens while Python starts or imports (a missing package, no home, no cache) always start Python, without this module.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import resource
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from tests.support import DEEP

PRELOADED = ("lz_penalty.cli", "tests.support.preloaded")

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(list(PRELOADED))


def run(
    *arguments: object,
    module: str = "lz_penalty",
    given: str | bytes = "",
    env: Mapping[str, str] | None = None,
    cwd: Any = None,
    full: bool = False,
    timeout: float = 300,
) -> subprocess.CompletedProcess[str]:
    """Run `python -m module arguments` and return its exit code, output and error output.

    Args:
        arguments: of the command.
        module: what is run.
        given: the standard input.
        env: environment variables to change. They come too late for what a library reads when it is imported.
        cwd: the working folder.
        full: no file can get a single byte, as on a full disk.
        timeout: seconds after which the process is killed.
    """
    environment = {**os.environ, **(env or {})}
    arguments = tuple(os.fsdecode(one) if isinstance(one, bytes) else str(one) for one in arguments)
    if DEEP:
        return _run_python(module, arguments, given, environment, cwd, full, timeout)
    pipes = {name: _forks.Pipe(duplex=False) for name in ("stdin", "stdout", "stderr")}
    ends = {name: pair[name != "stdin"] for name, pair in pipes.items()}
    mine = {name: pair[name == "stdin"] for name, pair in pipes.items()}
    process = _forks.Process(target=_command, args=(module, arguments, ends, environment, cwd or os.getcwd(), full))
    process.start()
    for end in ends.values():
        end.close()
    with ThreadPoolExecutor(3) as pool:
        pool.submit(_write, mine["stdin"], given if isinstance(given, bytes) else given.encode())
        out, errors = (pool.submit(_read, mine[name]) for name in ("stdout", "stderr"))
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired([module, *arguments], timeout)
        return subprocess.CompletedProcess([module, *arguments], process.exitcode, out.result(), errors.result())


class Started(NamedTuple):
    """A process that was started.

    Attributes:
        pid: its id.
        runs: returns whether it runs.
        wait: takes seconds, waits so long for the process to end, and returns the exit code.
    """

    pid: int
    runs: Callable[[], bool]
    wait: Callable[[float], int | None]


@contextmanager
def started(*arguments: object, module: str = "lz_penalty", log: Path, env: Mapping[str, str]) -> Iterator[Started]:
    """Start `python -m module arguments`, and end it with the context.

    Args:
        arguments: of the command.
        module: what is run.
        log: the file for its output.
        env: environment variables to change.
    """
    environment, given = {**os.environ, **env}, tuple(map(str, arguments))
    if DEEP:
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *given],
                stdout=out,
                stderr=out,
                env=environment,
                preexec_fn=_hear_interrupts,
            )
        runs, wait = (lambda: process.poll() is None), process.wait
    else:
        process = _forks.Process(target=_command, args=(module, given, log, environment, os.getcwd(), False))
        process.start()
        runs, wait = process.is_alive, lambda seconds: process.join(seconds) or process.exitcode
    try:
        yield Started(process.pid, runs, wait)
    finally:
        process.terminate()
        wait(30)


def _run_python(module, arguments, given, env, cwd, full, timeout) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        input=given if isinstance(given, bytes) else given.encode(),
        env=env,
        cwd=cwd,
        preexec_fn=_fill_disk if full else None,
        capture_output=True,
        timeout=timeout,
        check=False,
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def _fill_disk() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def _hear_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background jobs ignore it, and so do their children


def _write(pipe: Connection, text: bytes) -> None:
    with open(os.dup(pipe.fileno()), "wb") as file:
        pipe.close()
        try:
            file.write(text)
            file.flush()
        except BrokenPipeError:  # the command did not read it all
            pass


def _read(pipe: Connection) -> str:
    with open(os.dup(pipe.fileno()), encoding="utf-8") as file:
        pipe.close()
        return file.read()


def _command(
    module: str,
    arguments: tuple[str, ...],
    streams: dict[str, Connection] | Path,
    environment: dict[str, str],
    cwd: Any,
    full: bool,
) -> None:
    if isinstance(streams, Path):
        with streams.open("wb") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
    else:
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            os.dup2(streams[name].fileno(), number)
            streams[name].close()
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if full:
        _fill_disk()
    sys.argv = [module, *arguments]
    if module == "lz_penalty":
        importlib.import_module("lz_penalty.cli").main()
    else:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
