"""The entry point: SGLang calls `register` in every process.

SGLang logs the errors of a plug-in, also those while it is imported, and goes on without it. A server that quietly lacks the
penalty is worse than none. So this module imports nothing that could fail, and every later error ends the process:
`SystemExit` is no `Exception`, and SGLang's main process ends when one of its children does.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from lz_penalty.errors import LZPenaltyError

__all__ = ["errors_end_the_process", "register"]


def register() -> None:
    """Check the server's settings and register the hooks. SGLang calls this."""
    with errors_end_the_process():
        from lz_penalty.engines.sglang import _hooks as hooks

        hooks.register()


@contextmanager
def errors_end_the_process() -> Iterator[None]:
    """Turn any error into the end of this process, with a message that says how to start without the plug-in."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, LZPenaltyError):
            traceback.print_exc()
        raise SystemExit(
            f"lz_penalty's plug-in for SGLang cannot work here, so this process ends: {type(error).__name__}: {error} "
            "Without the plug-in, lz_* fields have no effect. To start without it, name the plug-ins that you do want in "
            "SGLANG_PLUGINS (SGLANG_PLUGINS=none: no plug-in)."
        ) from error
