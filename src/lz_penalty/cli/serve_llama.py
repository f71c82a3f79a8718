"""`lz-penalty serve-llama`: llama-cpp-python's server with `lz_*` fields per request."""

from __future__ import annotations

import typer

from lz_penalty.cli.serving import help_first


def serve_llama(context: typer.Context) -> None:
    """Serve GGUF files with llama-cpp-python's server and all its options; requests take lz_* fields."""
    with help_first(context.args, "llama-cpp-python"):
        from lz_penalty.engines.llama_cpp._options import read_options
        from lz_penalty.engines.llama_cpp._server import serve

        serve(read_options(context.args))
