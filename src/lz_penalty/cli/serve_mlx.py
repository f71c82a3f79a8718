"""`lz-penalty serve-mlx`: mlx-lm's server with `lz_*` fields per request."""

from __future__ import annotations

import typer

from lz_penalty.cli.serving import help_first


def serve_mlx(context: typer.Context) -> None:
    """Serve models with mlx-lm and the penalty.

    Examples:
        lz-penalty serve-mlx --model mlx-community/Qwen3-0.6B-4bit
        lz-penalty serve-mlx --model FOLDER --port 8081

    This is mlx-lm's own server. Requests to /v1/completions and /v1/chat/completions may have lz_* fields, such as
    "lz_preset": "guarded". A bad field gets status 400. The environment variable LZ_PENALTY_SERVER sets a default and caps
    for all requests. --help also lists all options of the server.
    """
    with help_first(context, "mlx-lm"):
        from lz_penalty.engines.mlx_lm._server import serve

        serve(context.args)
