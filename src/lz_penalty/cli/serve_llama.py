"""`lz-penalty serve-llama`: run an OpenAI-compatible server for a GGUF file, with `lz_*` fields per request."""

from __future__ import annotations

from pathlib import Path

import typer


def serve_llama(
    model: Path = typer.Argument(..., exists=True, dir_okay=False, help="The GGUF file."),
    host: str = typer.Option("127.0.0.1", help="The address to listen on; one that others can reach needs an API key."),
    port: int = typer.Option(8000, min=1, max=65535),
    api_key: str = typer.Option("", envvar="LZ_PENALTY_API_KEY", help="The bearer token that requests must have."),
    n_ctx: int = typer.Option(2048, min=1, help="The context's length in tokens."),
    n_gpu_layers: int = typer.Option(0, min=-1, help="How many layers are on the GPU; -1 for all."),
) -> None:
    """Serve a GGUF file with llama-cpp-python; requests take lz_* fields."""
    from lz_penalty.engines.llama_cpp._server import serve

    serve(str(model), host=host, port=port, api_key=api_key or None, n_ctx=n_ctx, n_gpu_layers=n_gpu_layers)
