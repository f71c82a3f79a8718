"""What the entry point names: SGLang calls `register` in every process, and it registers `hooks`.

SGLang logs what a plug-in raises, also while it is imported, and goes on without it. A server that quietly lacks the
penalty is worse than none. So this module imports nothing that could fail, and everything else happens where an error
ends the process: `SystemExit` is no `Exception`, and SGLang's main process ends when one of its children has.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

from lz_penalty.errors import LZPenaltyError

__all__ = ["errors_end_the_process", "is_registered", "register"]

_process = SimpleNamespace(registered=False)


def register() -> None:
    """Called by SGLang: check the server's settings and register the hooks."""
    with errors_end_the_process():
        from lz_penalty.engines.sglang import _hooks as hooks

        hooks.register()
        _process.registered = True


def is_registered() -> bool:
    """Whether the plug-in penalises in this process."""
    return _process.registered


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
