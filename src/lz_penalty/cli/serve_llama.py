"""`lz-penalty serve-llama`: llama-cpp-python's server with `lz_*` fields per request."""

from __future__ import annotations

import typer

from lz_penalty.cli.serving import help_first


def serve_llama(context: typer.Context) -> None:
    """Serve GGUF files with llama.cpp and the penalty.

    Examples:
        lz-penalty serve-llama model.gguf --n_ctx 8192 --n_gpu_layers -1
        lz-penalty serve-llama --models models.toml --port 8001

    This is llama-cpp-python's own server. Requests to /v1/completions and /v1/chat/completions may have lz_* fields, such as
    "lz_preset": "guarded". A bad field gets status 400. The environment variable LZ_PENALTY_SERVER sets a default and caps
    for all requests. --help also lists all options of the server.
    """
    with help_first(context, "llama-cpp-python"):
        from lz_penalty.engines.llama_cpp._options import read_options
        from lz_penalty.engines.llama_cpp._server import serve

        serve(read_options(context.args))
