"""Run Python that a model wrote, such as answers to HumanEval: `program_of` builds a program, `passes` runs it.

A program runs in its own process, with limits on time, memory, files and processes, without stdin, environment and network,
in an empty folder that is removed afterwards. It passes if it comes to its end: then the process copies a random token from
a pipe to another one. The program does not see the token, but shares the process with the code that copies it. A program
written to cheat could therefore pass. It could not reach the network, other processes or the files of this machine.

There are two isolations. `namespaces` is enforced by the kernel: no network, no other processes, all files read-only. `hook`
is an audit hook of Python, for machines that allow no namespaces. It stops accidents, not attacks, and it limits the size of
each file but not their sum.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
import secrets
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from lz_penalty._checks import choice, integer, real
from lz_penalty.errors import LZPenaltyError, bad_value, show

__all__ = ["ISOLATIONS", "Outcome", "best_isolation", "passes", "program_of"]

ISOLATIONS = ("namespaces", "hook")
DISK = 16 * 2**20  # bytes of a file, and of the working directory with namespaces
MAX_OUTPUT = 4_000  # bytes at the end of the output that are kept
MAX_PROGRAM = 2**20  # characters
START_SECONDS = 60.0  # until the program starts, on a busy machine
FENCE = re.compile(r"```[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL)
FUTURE = re.compile(r"^from __future__ import .*$", re.MULTILINE)
FIRST_LINE = re.compile(r"(?:from|import|def|class|async)\s|@")
CODE_LINE = re.compile(
    r"\s|$|[#@)\]}]|(?:from|import|def|class|async|if|elif|else|for|while|try|except|finally|with)\b|\w+\s?(?:[=(\[.]|:.*=)"
)


@dataclass(frozen=True)
class Outcome:
    """What became of a program.

    Args:
        passed: whether the program came to its end.
        reason: `passed`, `failed` (an exception, an exit or a signal) or `timeout`.
        output: the end of what it printed, with the exception.
        isolation: which of `ISOLATIONS` was in force.
        seconds: how long it ran.
    """

    passed: bool
    reason: str
    output: str
    isolation: str
    seconds: float


# ---------------------------------------------------------------- programs


def program_of(prompt: str, answer: str, test: str, entry_point: str) -> str:
    """Return the program that tests an answer: the prompt, the answer's code, the test and `check(entry_point)`.

    The code is the last fenced block that defines the function, or else the last fenced block, or else the whole answer.
    Code that does not define the function is its body, and ends before the first line without indentation. Thinking, up
    to `</think>`, is no code.

    >>> print(program_of("def one():\\n", "Sure:\\n```python\\nreturn 1\\n```", "def check(f): assert f() == 1", "one"))
    def one():
        return 1
    <BLANKLINE>
    def check(f): assert f() == 1
    check(one)
    """
    if not entry_point.isidentifier():
        raise bad_value("entry_point", entry_point, "the name of a function")
    defines = re.compile(rf"^(?:async\s+)?def\s+{re.escape(entry_point)}\s*\(", re.MULTILINE)
    text = answer.rpartition("</think>")[2].replace("\r\n", "\n")
    blocks = FENCE.findall(text)
    code = next((block for block in reversed(blocks) if defines.search(block)), blocks[-1] if blocks else text)
    code = _whole(code if blocks else _without_prose(code)) if defines.search(code) else _body(code)
    return f"{prompt.rstrip()}\n{code.rstrip()}\n\n{test.strip()}\ncheck({entry_point})\n"


def _whole(code: str) -> str:
    """Return code that defines the function again: the prompt's function gets an empty body first."""
    return "    pass\n\n" + FUTURE.sub("", code)


def _without_prose(text: str) -> str:
    """Return the lines from the first one that begins a definition to the last one before prose."""
    lines = text.split("\n")
    start = next((n for n, line in enumerate(lines) if FIRST_LINE.match(line)), 0)
    end = next((n for n, line in enumerate(lines) if n > start and not CODE_LINE.match(line)), len(lines))
    return "\n".join(lines[start:end])


def _body(code: str) -> str:
    """Return the body of a function, indented, up to the first line that is not part of it."""
    lines = code.strip("\n").rstrip().split("\n")
    rest = [line for line in lines[1:] if line.strip()]
    if lines[0][:1] not in (" ", "\t"):
        whole = any(not line.startswith(" ") for line in rest) or not rest
        lines = [f"    {line}" if whole or not number else line for number, line in enumerate(lines)]
    end = next((number for number, line in enumerate(lines) if line[:1] not in ("", " ", "\t")), len(lines))
    return "\n".join(lines[:end])


# ---------------------------------------------------------------- running


def passes(program: str, *, seconds: float = 10.0, memory: int = 2**30, isolation: str | None = None) -> Outcome:
    """Run a program and return what became of it. No program can make this function fail or hang.

    Args:
        program: Python's source text. It may import the standard library only.
        seconds: the limit on the time it runs, and on its processor time.
        memory: the limit on its address space, in bytes.
        isolation: one of `ISOLATIONS`; an error if this machine does not allow it. By default the best one that it allows.

    >>> passes("print(6 * 7)").passed, passes("assert 6 * 7 == 43").reason
    (True, 'failed')
    """
    if not sys.platform.startswith("linux"):
        raise LZPenaltyError(f"the sandbox runs on Linux only; this is {sys.platform}. Run the programs on Linux.")
    if not isinstance(program, str) or len(program) > MAX_PROGRAM:
        raise bad_value("program", program, f"a text of at most {MAX_PROGRAM} characters")
    real(0.1, 3_600)("seconds", seconds)
    integer(64 * 2**20, 2**40)("memory", memory)
    choice(None, *ISOLATIONS)("isolation", isolation)
    return _run(program, seconds, memory, isolation or best_isolation())


@functools.lru_cache(maxsize=None)
def best_isolation() -> str:
    """Return `namespaces` if this machine allows them, else `hook`."""
    try:
        return passes("", isolation="namespaces").isolation
    except LZPenaltyError:
        return "hook"


def _run(program: str, seconds: float, memory: int, isolation: str) -> Outcome:
    token = secrets.token_hex(16).encode()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="lz-sandbox-", ignore_cleanup_errors=True))
        (token_end, token_start), (report_end, report_start) = _pipe(stack), _pipe(stack)
        token_start.write(token)
        token_start.close()
        order = {
            "program": program.encode("utf-8", "replace").decode(),
            "isolation": isolation,
            "cpu_seconds": math.ceil(seconds) + 1,  # the time of the clock ends it first
            "memory": memory,
            "disk": DISK,
            "token": token_end.fileno(),
            "report": report_start.fileno(),
        }
        stdin = stack.enter_context(tempfile.TemporaryFile())
        stdin.write(json.dumps(order).encode())
        stdin.seek(0)
        process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", "-X", "utf8", "-c", _runner()],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={},
                pass_fds=(token_end.fileno(), report_start.fileno()),
                start_new_session=True,
            )
        )
        report_start.close()
        stdout = process.stdout
        assert stdout is not None
        try:
            report, output, ran, late = _follow(report_end.fileno(), stdout.fileno(), seconds, len(token))
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    begin, _, proof = report.partition(b"\n")
    if begin.decode(errors="replace") != isolation:
        raise _refusal(isolation, begin.decode(errors="replace"), output.decode(errors="replace"))
    passed = secrets.compare_digest(proof, token)
    reason = "passed" if passed else "timeout" if late else "failed"
    return Outcome(passed, reason, output.decode(errors="replace"), isolation, ran)


@functools.lru_cache(maxsize=None)
def _runner() -> str:
    return Path(__file__).with_name("_sandbox_runner.py").read_text(encoding="utf-8")


def _pipe(stack: ExitStack) -> tuple[IO[bytes], IO[bytes]]:
    """Return both ends of a pipe, first the one to read from."""
    reading, writing = os.pipe()
    return (
        stack.enter_context(open(reading, "rb", buffering=0)),
        stack.enter_context(open(writing, "wb", buffering=0)),
    )


def _follow(report: int, stdout: int, seconds: float, size: int) -> tuple[bytes, bytes, float, bool]:
    """Read until the report has its proof or ends, or until the time is over.

    Returns:
        The report, the end of the output, the seconds since the program started, and whether its time was over.
    """
    texts, begin, most = {report: b"", stdout: b""}, time.monotonic(), START_SECONDS
    started = False
    with selectors.DefaultSelector() as selector:
        selector.register(report, selectors.EVENT_READ)
        selector.register(stdout, selectors.EVENT_READ)
        while (left := begin + most - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                chunk = os.read(key.fd, 2**16)
                text = texts[key.fd] + chunk
                texts[key.fd] = text[:MAX_OUTPUT] if key.fd == report else text[-MAX_OUTPUT:]
                if not chunk:
                    selector.unregister(key.fd)
            if not started and b"\n" in texts[report]:
                started, begin, most = True, time.monotonic(), seconds
            if report not in selector.get_map() or len(texts[report].partition(b"\n")[2]) >= size:
                break
    ran = time.monotonic() - begin
    os.set_blocking(stdout, False)
    with suppress(BlockingIOError):  # what was printed just before the end
        texts[stdout] = (texts[stdout] + os.read(stdout, 2**16))[-MAX_OUTPUT:]
    return texts[report], texts[stdout], ran, left <= 0


def _refusal(isolation: str, report: str, output: str) -> LZPenaltyError:
    if report.startswith("refused: ") and isolation == "namespaces":
        return LZPenaltyError(
            f"isolation = 'namespaces': this machine does not allow it ({report.removeprefix('refused: ')}). Allow user "
            "namespaces, run as root, or accept isolation='hook', which stops accidents but no attacks."
        )
    return LZPenaltyError(
        f"the sandbox did not start: {show(report or output or 'no report', 300)}. Check that Python runs: {sys.executable} -I"
    )
