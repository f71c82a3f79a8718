"""`lz-penalty` in the process of the tests, which saves the seconds that a new process needs for its imports."""

import contextlib
import io
import os
import sys
import warnings
from subprocess import CompletedProcess
from unittest import mock

from lz_penalty.cli import main


def run_here(*arguments: object, **environment: str) -> CompletedProcess[str]:
    """Run the command line, and return its exit code, output and error output."""
    out, err = io.StringIO(), io.StringIO()
    code: object = None
    with (
        mock.patch.dict(os.environ, environment),
        mock.patch.object(sys, "argv", ["lz-penalty", *map(str, arguments)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        try:
            main()
        except SystemExit as end:
            code = end.code
    return CompletedProcess(arguments, code if isinstance(code, int) else 0, out.getvalue(), err.getvalue())
