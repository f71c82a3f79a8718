"""What Ctrl-C prints: what was kept, and how to go on.

A command calls `keeps` as soon as it knows. The class of all commands uses `telling`.
"""

from __future__ import annotations

import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

__all__ = ["again", "keeps", "telling"]

INTERRUPTED = 130  # the usual exit code after SIGINT
NOTHING = "Nothing was kept."
STOPPED = "The server has stopped. It keeps nothing."

_kept = NOTHING


def keeps(text: str) -> None:
    """Set what Ctrl-C prints from now on: what was kept and how to go on, in one or two sentences."""
    global _kept
    _kept = text


def again(option: str | None = None) -> str:
    """Return the command line of this process, to be run again, with `option` added."""
    words = sys.argv[1:]
    return "lz-penalty " + shlex.join([*words, *([option] if option and option not in words else [])])


@contextmanager
def telling(*, serves: bool) -> Iterator[None]:
    """After Ctrl-C, print what was kept and exit with code 130.

    Args:
        serves: whether the command is a server. Servers catch SIGINT themselves, end, and return as if nothing had happened.
    """
    keeps(STOPPED if serves else NOTHING)
    signals: list[int] = []

    def note(number: int, frame: Any) -> None:
        signals.append(number)
        raise KeyboardInterrupt

    watched = serves and threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, note) if watched else None
    try:
        yield
    except KeyboardInterrupt:
        signals.append(signal.SIGINT)
    finally:
        if watched:
            signal.signal(signal.SIGINT, before)
    if signals:
        begin = "\n" if sys.stderr.isatty() else ""  # after the ^C that a terminal shows
        print(f"{begin}lz-penalty: interrupted. {_kept}", file=sys.stderr)
        # CPython remembers an interrupt inside exec(), as in the import of a dataclass, and `python -m` then ends with the
        # signal instead of the exit code. The next exec() resets this.
        exec("")
        raise typer.Exit(INTERRUPTED)
