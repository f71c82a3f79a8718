"""`lz-penalty serve-mlx`: mlx-lm's server with `lz_*` fields per request."""

from __future__ import annotations

import typer

from lz_penalty.cli.serving import help_first


def serve_mlx(context: typer.Context) -> None:
    """Serve models with mlx-lm's server and all its options; requests take lz_* fields."""
    with help_first(context.args, "mlx-lm"):
        from lz_penalty.engines.mlx_lm._server import serve

        serve(context.args)
