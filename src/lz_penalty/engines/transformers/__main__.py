"""`python -m lz_penalty.engines.transformers serve MODEL ...`: transformers' own command line, with the penalty enabled."""

import sys

from transformers.cli.serve import Serve

from lz_penalty.engines.server import VARIABLE, server_settings
from lz_penalty.engines.transformers import enable
from lz_penalty.engines.transformers._settings import FIELDS
from lz_penalty.errors import LZPenaltyError

HELP = f"""
With the LZ penalty: requests for chat completions, completions and responses may have the fields
{", ".join(FIELDS)}. A bad one is answered with status 400. The environment variable {VARIABLE} sets
a default and caps for all requests.
"""


def main() -> None:
    """Run transformers' command line."""
    enable()
    Serve.__doc__ = f"{Serve.__doc__}{HELP}"
    from transformers.cli.transformers import app  # reads the help texts when it is imported

    try:
        server_settings().without_vllm_settings()  # a bad default is an error now, not in every request
        app()
    except LZPenaltyError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
